"""The tables and functions of a bank in PostgreSQL.

Each thing that a centre does is one call of one function, which is a transaction of its own inside the server. So a
centre that is stopped, slow or cut off never holds a lock. A centre writes rows of its own only. `close_boundary`, the
one closer, alone writes accounts and loans; it computes what `Book.close` does, in one statement and so at one moment.
"""

from __future__ import annotations

from dpfuse.ledger.bank.rules import NOTHING, BankTerms

VERSION = 4

_TABLES = """
CREATE TABLE bank (version int NOT NULL, content text NOT NULL, restored_at bigint NOT NULL DEFAULT -1);
CREATE TABLE centres (
    centre text NOT NULL, generation bigint NOT NULL, ledger_id text NOT NULL, place text NOT NULL,
    boundary bigint NOT NULL, PRIMARY KEY (centre, generation)
);
CREATE TABLE streams (stream text PRIMARY KEY, ledger_id text NOT NULL);
CREATE TABLE submissions (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, num_commits bigint NOT NULL,
    claims bigint[] NOT NULL, private_tip bytea NOT NULL DEFAULT '', PRIMARY KEY (centre, generation, boundary)
);
CREATE TABLE statements (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, epoch bigint NOT NULL,
    spent bigint[] NOT NULL, PRIMARY KEY (centre, generation, boundary, epoch)
);
CREATE TABLE answers (
    centre text NOT NULL, generation bigint NOT NULL, boundary bigint NOT NULL, num_commits bigint NOT NULL,
    mark text NOT NULL, private_tip bytea NOT NULL DEFAULT '', PRIMARY KEY (centre, generation)
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
    CHECK (spent >= 0 AND lent >= 0 AND spent + lent <= {budget})
) WITH (fillfactor = 50);
CREATE TABLE closings (boundary bigint PRIMARY KEY, spent numeric NOT NULL, lent numeric NOT NULL);
"""
# Long arrays are stored as they are: to compress them takes longer than to write them.
_STORAGE = "ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL;"
_ARRAYS = (("submissions", "claims"), ("statements", "spent"), ("loans", "sensors"), ("loans", "amounts"))

# The slices in a ledger are those of one centre: under another name what was spent of them could not be stated.
_REGISTER = """
CREATE OR REPLACE FUNCTION register_centre(
    own_name text, own_ledger text, own_place text, own_streams text[], own_commits bigint
) RETURNS TABLE (result text, own_generation bigint) LANGUAGE plpgsql AS $$
DECLARE
    now_boundary bigint := floor(extract(epoch FROM clock_timestamp()) / {epoch_s});
    restored bigint := (SELECT restored_at FROM bank);
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
    IF latest.centre IS NULL AND restored < 0 THEN
        INSERT INTO centres VALUES (own_name, 1, own_ledger, own_place, now_boundary);
        RETURN QUERY SELECT 'new', 1::bigint;
        RETURN;
    END IF;
    SELECT coalesce(max(num_commits), 0), greatest(max(boundary), latest.boundary, restored)
        INTO last_commit, last_boundary
        FROM answers WHERE centre = own_name AND generation = latest.generation;
    IF (latest.ledger_id, latest.place) = (own_ledger, own_place) AND own_commits >= last_commit
            AND latest.generation > restored THEN
        UPDATE centres SET boundary = now_boundary WHERE centre = own_name AND generation = latest.generation;
        RETURN QUERY SELECT 'same', latest.generation;
    ELSIF now_boundary > last_boundary + {patience} + 2 THEN
        INSERT INTO centres
            VALUES (own_name, greatest(latest.generation, restored) + 1, own_ledger, own_place, now_boundary);
        RETURN QUERY SELECT 'new', greatest(latest.generation, restored) + 1;
    ELSE
        RETURN QUERY SELECT 'busy', last_boundary + {patience} + 3 - now_boundary;
    END IF;
END $$;
"""

# Every submission shows the answer that the centre has received last. So an answer that is later than it followed from
# a submission with an answer that the bank knew. An old copy lacks the answer, or has another one for its boundary.
# The row in `lost_answers` stops the bank for everybody: its accounts do not hold what was lent with a lost answer.
# Of a bank that was restored, the answers to earlier generations up to the period of the restore may be lost.
_KNOWS_ANSWER = """
CREATE OR REPLACE FUNCTION knows_answer(
    own_name text, own_generation bigint, last_boundary bigint, last_mark text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF last_boundary >= 0 AND NOT EXISTS (
        SELECT 1 FROM answers WHERE centre = own_name AND generation = own_generation
            AND (boundary > last_boundary OR (boundary, mark) = (last_boundary, last_mark))
    ) AND NOT EXISTS (
        SELECT 1 FROM bank WHERE own_generation <= restored_at
            AND last_boundary / {epochs_per_period} <= restored_at / {epochs_per_period}
    ) THEN
        INSERT INTO lost_answers VALUES (own_name, own_generation, last_boundary, last_mark) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NOT EXISTS (SELECT 1 FROM lost_answers);
END $$;
"""

_SUBMIT = """
CREATE OR REPLACE FUNCTION submit(
    own_name text, own_generation bigint, own_boundary bigint, own_commits bigint,
    own_claims bigint[], own_epochs bigint[], own_spent bigint[], last_boundary bigint, last_mark text,
    own_tip bytea DEFAULT ''
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    width bigint := cardinality(own_spent) / greatest(cardinality(own_epochs), 1);
BEGIN
    IF NOT knows_answer(own_name, own_generation, last_boundary, last_mark) THEN
        RETURN 'old copy';
    END IF;
    IF own_generation <> (SELECT max(generation) FROM centres WHERE centre = own_name)
            OR own_generation <= (SELECT restored_at FROM bank) THEN
        RETURN 'ended';
    END IF;
    INSERT INTO submissions VALUES (own_name, own_generation, own_boundary, own_commits, own_claims, own_tip)
        ON CONFLICT DO NOTHING;
    INSERT INTO statements
        SELECT own_name, own_generation, own_boundary, epoch, own_spent[(number - 1) * width + 1 : number * width]
        FROM unnest(own_epochs) WITH ORDINALITY AS own (epoch, number)
        ON CONFLICT DO NOTHING;
    RETURN 'taken';
END $$;
"""

# `changed` has one row for each account that a statement or claim touches: the account after all statements, and the
# number of claimants. Sums are numeric in PostgreSQL, so they cannot wrap; what is stored fits by the table's check.
# PostgreSQL does not know how long the arrays are, so its plan is fixed here: submissions have numbers, which sort
# faster than names, `touched` is in the order of the accounts' index, and `granted` is computed once for all.
_CLOSE = """
CREATE OR REPLACE FUNCTION close_boundary(wanted bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    own_mark text := gen_random_uuid();
    restored bigint := (SELECT restored_at FROM bank);
BEGIN
    IF extract(epoch FROM clock_timestamp()) < (wanted - 0.5) * {epoch_s} OR EXISTS (SELECT 1 FROM lost_answers) THEN
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
    IF (SELECT max(boundary) FROM closings) / {epochs_per_period} < wanted / {epochs_per_period} THEN
        DELETE FROM accounts;
        DELETE FROM loans;
    END IF;
    WITH latest AS (SELECT centre, max(generation) AS generation FROM centres GROUP BY centre),
    counted AS MATERIALIZED (
        SELECT *, row_number() OVER (ORDER BY centre) AS submission
        FROM submissions JOIN latest USING (centre, generation)
        WHERE boundary = wanted AND generation > restored
    ),
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
        SELECT DISTINCT submission, sensor FROM counted, unnest(claims) AS own (sensor)
        WHERE sensor >= 0 AND greatest(wanted - 2, 0) / {epochs_per_period} = wanted / {epochs_per_period}
            AND (restored < 0 OR wanted / {epochs_per_period} > restored / {epochs_per_period})
    ),
    claimants AS (SELECT sensor, count(*) AS number FROM claimed GROUP BY sensor),
    touched AS (SELECT * FROM settled FULL JOIN claimants USING (sensor) ORDER BY sensor),
    changed AS MATERIALIZED (
        SELECT sensor, number, coalesce(accounts.spent, 0) + coalesce(used, 0) AS spent,
            coalesce(accounts.lent, 0) - coalesce(amount, 0) AS lent,
            coalesce(used, 0) AS more_spent, coalesce(amount, 0) AS less_lent
        FROM touched LEFT JOIN accounts USING (sensor)
    ),
    priced AS MATERIALIZED (
        SELECT *, CASE WHEN number IS NULL THEN 0
            ELSE greatest(least(({budget} - spent - lent) / 2, {budget} / 8), 0) / number END AS slice
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
    granted AS MATERIALIZED (
        SELECT submission, array_agg(sensor ORDER BY sensor) AS sensors,
            array_agg(slice ORDER BY sensor) AS amounts, count(*)::int AS number
        FROM claimed JOIN priced USING (sensor) GROUP BY submission
    ),
    lent AS (
        INSERT INTO loans
        SELECT centre, generation, wanted,
            coalesce(sensors, '{{}}') || array_fill({nothing}::bigint, ARRAY[num_fillings]),
            coalesce(amounts, '{{}}') || array_fill(0::bigint, ARRAY[num_fillings])
        FROM counted LEFT JOIN granted USING (submission), LATERAL (
            SELECT (greatest(number, 1) - 1) / {capacity} * {capacity} + {capacity} - coalesce(number, 0)
        ) AS filled (num_fillings)
    ),
    answered AS (
        INSERT INTO answers SELECT centre, generation, wanted, num_commits, own_mark, private_tip FROM counted
        ON CONFLICT (centre, generation) DO UPDATE
            SET boundary = excluded.boundary, mark = excluded.mark,
                num_commits = greatest(answers.num_commits, excluded.num_commits),
                private_tip = CASE WHEN excluded.num_commits < answers.num_commits THEN answers.private_tip
                    ELSE excluded.private_tip END
    ),
    before AS (
        SELECT spent, lent FROM closings WHERE boundary / {epochs_per_period} = wanted / {epochs_per_period}
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
"""


_FUNCTIONS = _REGISTER + _KNOWS_ANSWER + _SUBMIT + _CLOSE
# What brings the tables of each earlier version to the next one. Functions are replaced.
_STEPS = {
    3: """
ALTER TABLE bank ADD COLUMN restored_at bigint NOT NULL DEFAULT -1;
ALTER TABLE submissions DROP CONSTRAINT submissions_claims_check;
ALTER TABLE submissions ADD COLUMN private_tip bytea NOT NULL DEFAULT '';
ALTER TABLE answers ADD COLUMN private_tip bytea NOT NULL DEFAULT '';
DROP FUNCTION submit;
""",
}
OLDEST_VERSION = min(_STEPS)


def script(terms: BankTerms) -> str:
    """The statements that make the tables and functions of a bank with these terms."""
    storage = "".join(_STORAGE.format(table=table, column=column) for table, column in _ARRAYS)
    return _filled(_TABLES + _FUNCTIONS, terms) + storage


def upgrade_script(terms: BankTerms, version: int) -> str:
    """The statements that bring a bank of that version to this one; accounts, loans and centres stay."""
    steps = "".join(_STEPS[number] for number in range(version, VERSION))
    return steps + _filled(_FUNCTIONS, terms) + f"UPDATE bank SET version = {VERSION};"


def _filled(text: str, terms: BankTerms) -> str:
    return text.format(
        budget=terms.budget,
        capacity=terms.capacity,
        epoch_s=repr(terms.epoch_s),
        patience=terms.patience,
        nothing=NOTHING,
        epochs_per_period=terms.epochs_per_period,
    )
