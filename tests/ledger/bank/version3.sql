-- A bank of version 3, as dpfuse of commit edf3d26 made it: Bank.create(..., capacity=4).
CREATE TABLE bank (version int NOT NULL, content text NOT NULL);
CREATE TABLE centres (
    centre text NOT NULL, generation bigint NOT NULL, ledger_id text NOT NULL, place text NOT NULL,
    boundary bigint NOT NULL, PRIMARY KEY (centre, generation)
);
CREATE TABLE streams (stream text PRIMARY KEY, ledger_id text NOT NULL);
CREATE TABLE submissions (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, num_commits bigint NOT NULL,
    claims bigint[] NOT NULL CHECK (cardinality(claims) = 4), PRIMARY KEY (centre, generation, boundary)
);
CREATE TABLE statements (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, epoch bigint NOT NULL,
    spent bigint[] NOT NULL, PRIMARY KEY (centre, generation, boundary, epoch)
);
CREATE TABLE answers (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, num_commits bigint NOT NULL,
    mark text NOT NULL, PRIMARY KEY (centre, generation)
);
CREATE TABLE lost_answers (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, mark text NOT NULL,
    PRIMARY KEY (centre, generation)
);
CREATE TABLE loans (
    centre text NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL,
    sensors bigint[] NOT NULL, amounts bigint[] NOT NULL, PRIMARY KEY (centre, generation, epoch)
);
CREATE TABLE accounts (
    sensor bigint PRIMARY KEY CHECK (sensor >= 0), spent bigint NOT NULL, lent bigint NOT NULL,
    CHECK (spent >= 0 AND lent >= 0 AND spent + lent <= 1649267441664)
) WITH (fillfactor = 50);
CREATE TABLE closings (boundary bigint PRIMARY KEY, spent numeric NOT NULL, lent numeric NOT NULL);

CREATE FUNCTION register_centre(
    own_name text, own_ledger text, own_place text, own_streams text[], own_commits bigint
) RETURNS TABLE (result text, own_generation bigint) LANGUAGE plpgsql AS $$
DECLARE
    now_boundary bigint := floor(extract(epoch FROM clock_timestamp()) / 2.0);
    latest centres%ROWTYPE;
    last_commit bigint;
    last_boundary bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1684108918, hashtext(own_ledger));
    IF EXISTS (SELECT 1 FROM centres WHERE ledger_id = own_ledger AND centre <> own_name) THEN
        RETURN QUERY SELECT 'another', 0::bigint;
        RETURN;
    END IF;
    INSERT INTO streams SELECT wanted, own_ledger FROM unnest(own_streams) AS wanted ON CONFLICT DO NOTHING;
    IF EXISTS (SELECT 1 FROM streams WHERE stream = ANY (own_streams) AND ledger_id <> own_ledger) THEN
        RAISE EXCEPTION 'stream of another ledger' USING ERRCODE = 'unique_violation';
    END IF;
    SELECT * INTO latest FROM centres WHERE centre = own_name ORDER BY generation DESC LIMIT 1;
    IF latest.centre IS NULL THEN
        INSERT INTO centres VALUES (own_name, 1, own_ledger, own_place, now_boundary);
        RETURN QUERY SELECT 'new', 1::bigint;
        RETURN;
    END IF;
    SELECT coalesce(max(num_commits), 0), greatest(coalesce(max(boundary), 0), latest.boundary)
        INTO last_commit, last_boundary
        FROM answers WHERE centre = own_name AND generation = latest.generation;
    IF (latest.ledger_id, latest.place) = (own_ledger, own_place) AND own_commits >= last_commit THEN
        UPDATE centres SET boundary = now_boundary WHERE centre = own_name AND generation = latest.generation;
        RETURN QUERY SELECT 'same', latest.generation;
    ELSIF now_boundary > last_boundary + 30 + 2 THEN
        INSERT INTO centres VALUES (own_name, latest.generation + 1, own_ledger, own_place, now_boundary);
        RETURN QUERY SELECT 'new', latest.generation + 1;
    ELSE
        RETURN QUERY SELECT 'busy', last_boundary + 30 + 3 - now_boundary;
    END IF;
END $$;

CREATE FUNCTION knows_answer(
    own_name text, own_generation bigint, last_boundary bigint, last_mark text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF last_boundary >= 0 AND NOT EXISTS (
        SELECT 1 FROM answers WHERE centre = own_name AND generation = own_generation
            AND (boundary > last_boundary OR (boundary, mark) = (last_boundary, last_mark))
    ) THEN
        INSERT INTO lost_answers VALUES (own_name, own_generation, last_boundary, last_mark) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NOT EXISTS (SELECT 1 FROM lost_answers);
END $$;

CREATE FUNCTION submit(
    own_name text, own_generation bigint, own_boundary bigint, own_commits bigint,
    own_claims bigint[], own_epochs bigint[], own_spent bigint[], last_boundary bigint, last_mark text
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT knows_answer(own_name, own_generation, last_boundary, last_mark) THEN
        RETURN 'old copy';
    END IF;
    IF own_generation <> (SELECT max(generation) FROM centres WHERE centre = own_name) THEN
        RETURN 'ended';
    END IF;
    INSERT INTO submissions VALUES (own_name, own_generation, own_boundary, own_commits, own_claims)
        ON CONFLICT DO NOTHING;
    INSERT INTO statements
        SELECT own_name, own_generation, own_boundary, epoch,
            own_spent[(number - 1) * 4 + 1 : number * 4]
        FROM unnest(own_epochs) WITH ORDINALITY AS own (epoch, number)
        ON CONFLICT DO NOTHING;
    RETURN 'taken';
END $$;

CREATE FUNCTION close_boundary(wanted bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    own_mark text := gen_random_uuid();
BEGIN
    IF extract(epoch FROM clock_timestamp()) < (wanted - 0.5) * 2.0 OR EXISTS (SELECT 1 FROM lost_answers) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM closings WHERE boundary >= wanted) THEN
        RETURN true;
    END IF;
    IF NOT pg_try_advisory_xact_lock(1684108917, hashtext(current_schema())) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM closings WHERE boundary >= wanted) THEN
        RETURN true;
    END IF;
    IF (SELECT max(boundary) FROM closings) / 4611686018427387904 < wanted / 4611686018427387904 THEN
        DELETE FROM accounts;
        DELETE FROM loans;
    END IF;
    WITH latest AS (SELECT centre, max(generation) AS generation FROM centres GROUP BY centre),
    counted AS (SELECT * FROM submissions JOIN latest USING (centre, generation) WHERE boundary = wanted),
    ended AS (SELECT own.* FROM loans AS own JOIN latest USING (centre) WHERE own.generation < latest.generation),
    stated AS (
        SELECT centre, generation, epoch, loans.sensors, loans.amounts, statements.spent
        FROM statements JOIN counted USING (centre, generation, boundary) JOIN loans USING (centre, generation, epoch)
    ),
    settled AS (
        SELECT sensor, sum(amount)::bigint AS amount, sum(used)::bigint AS used FROM (
            SELECT sensor, amount, CASE WHEN used BETWEEN 0 AND amount THEN used ELSE amount END AS used
                FROM stated, unnest(sensors, amounts, spent) AS own (sensor, amount, used) WHERE sensor >= 0
            UNION ALL
            SELECT sensor, amount, amount FROM ended, unnest(sensors, amounts) AS own (sensor, amount) WHERE sensor >= 0
        ) AS every_one GROUP BY sensor
    ),
    claimed AS (
        SELECT DISTINCT centre, generation, sensor FROM counted, unnest(claims) AS own (sensor)
        WHERE sensor >= 0 AND greatest(wanted - 2, 0) / 4611686018427387904 = wanted / 4611686018427387904
    ),
    claimants AS (SELECT sensor, count(*) AS number FROM claimed GROUP BY sensor),
    changed AS MATERIALIZED (
        SELECT sensor, number, coalesce(accounts.spent, 0) + coalesce(used, 0) AS spent,
            coalesce(accounts.lent, 0) - coalesce(amount, 0) AS lent,
            coalesce(used, 0) AS more_spent, coalesce(amount, 0) AS less_lent
        FROM settled FULL JOIN claimants USING (sensor) LEFT JOIN accounts USING (sensor)
    ),
    priced AS MATERIALIZED (
        SELECT *, CASE WHEN number IS NULL THEN 0
            ELSE greatest(least((1649267441664 - spent - lent) / 2, 1649267441664 / 8), 0) / number END AS slice
        FROM changed
    ),
    written AS (
        INSERT INTO accounts SELECT sensor, spent, lent + coalesce(number, 0) * slice FROM priced ORDER BY sensor
        ON CONFLICT (sensor) DO UPDATE SET spent = excluded.spent, lent = excluded.lent
    ),
    removed AS (
        DELETE FROM loans USING (
            SELECT centre, generation, epoch FROM stated UNION SELECT centre, generation, epoch FROM ended
        ) AS gone
        WHERE loans.centre = gone.centre AND loans.generation = gone.generation AND loans.epoch = gone.epoch
    ),
    granted AS (
        SELECT centre, generation, array_agg(sensor ORDER BY sensor) AS sensors,
            array_agg(slice ORDER BY sensor) AS amounts, count(*)::int AS number
        FROM claimed JOIN priced USING (sensor) GROUP BY centre, generation
    ),
    lent AS (
        INSERT INTO loans
        SELECT centre, generation, wanted,
            coalesce(sensors, '{}') || array_fill(-1::bigint, ARRAY[4 - coalesce(number, 0)]),
            coalesce(amounts, '{}') || array_fill(0::bigint, ARRAY[4 - coalesce(number, 0)])
        FROM counted LEFT JOIN granted USING (centre, generation)
    ),
    answered AS (
        INSERT INTO answers SELECT centre, generation, wanted, num_commits, own_mark FROM counted
        ON CONFLICT (centre, generation) DO UPDATE
            SET boundary = excluded.boundary, mark = excluded.mark,
                num_commits = greatest(answers.num_commits, excluded.num_commits)
    ),
    before AS (
        SELECT spent, lent FROM closings WHERE boundary / 4611686018427387904 = wanted / 4611686018427387904
        ORDER BY boundary DESC LIMIT 1
    )
    INSERT INTO closings SELECT wanted,
        coalesce((SELECT spent FROM before), 0) + coalesce(sum(more_spent), 0),
        coalesce((SELECT lent FROM before), 0) + coalesce(sum(coalesce(number, 0) * slice - less_lent), 0)
    FROM priced;
    DELETE FROM submissions WHERE boundary <= wanted;
    DELETE FROM statements WHERE boundary <= wanted;
    DELETE FROM closings WHERE boundary < wanted - 1000;
    RETURN true;
END $$;
ALTER TABLE submissions ALTER COLUMN claims SET STORAGE EXTERNAL;ALTER TABLE statements ALTER COLUMN spent SET STORAGE EXTERNAL;ALTER TABLE loans ALTER COLUMN sensors SET STORAGE EXTERNAL;ALTER TABLE loans ALTER COLUMN amounts SET STORAGE EXTERNAL;
INSERT INTO bank VALUES (3, '{"bank_id":"0123456789abcdef0123456789abcdef","capacity":4,"epoch_s":2.0,"guarantee":{"accounting":"individual","adjacency":"remove-one","budget":1.5,"order":2.0},"patience":30}');
