"""`dpfuse witness`: notices a centre that has rewritten its past."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import Certificates


def witness(
    url: Annotated[
        str, typer.Option("--from", help="Reading address of a centre, or of a relay of it.", metavar="URL")
    ],
    out: Annotated[Path, typer.Option(help="File that keeps the newest releases; it is continued if it exists.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    key: Annotated[
        str | None, typer.Option(help="The centre's public key, if you have it from elsewhere; by default as it says.")
    ] = None,
    ca: Certificates = None,
    mqtt: Annotated[
        str | None,
        typer.Option(help="Also compare the releases on this broker's topics with the address.", metavar="HOST:PORT"),
    ] = None,
    mqtt_account: Annotated[
        Path | None,
        typer.Option(help="File with user and password at the broker, as `dpfuse broker` prints them."),
    ] = None,
    mqtt_ca: Annotated[Path | None, typer.Option(help="Certificates to trust, for a broker with TLS.")] = None,
) -> None:
    """Keep the newest signed release of each stream, and end with exit 1 if the past has changed.

    Each release has a hash that covers all releases of its stream before it. At each
    look the centre must still show the kept ones, and what follows from them. Run it
    where the centre's operator cannot write. `dpfuse ledger verify --witness` compares
    the file with a ledger.

    With --mqtt it also reads every release that the centre publishes over MQTT, and the
    address has to show the same one: a past that was rewritten between two looks, and
    one that differs from reader to reader, are noticed, too. If more releases come than it
    can hold until the address shows them, it says on stderr that some are not compared.

    Example: dpfuse witness --from http://127.0.0.1:8765 --out tips.jsonl
    """
    from dpfuse.public.listening import parse_address
    from dpfuse.remote.client import connection_errors, reason_of
    from dpfuse.remote.release_topics import ReleaseTopics, read_account
    from dpfuse.remote.witness import Witness

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    if (mqtt is None) != (mqtt_account is None) or (mqtt and once):
        raise typer.BadParameter("--mqtt needs --mqtt-account, and goes without --once: it hears what comes meanwhile")
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        elsewhere: Callable[[], Iterable[bytes]] = list
        if mqtt is not None and mqtt_account is not None:
            broker, account = parse_address("--mqtt", mqtt), read_account(mqtt_account)
            elsewhere = stack.enter_context(ReleaseTopics(*broker, account, ca=mqtt_ca, tell=tell)).take
        found = stack.enter_context(Witness(url, out, ca=ca, public_key=key, tell=tell, elsewhere=elsewhere))
        is_away = False
        while True:
            try:
                num_new = found.look()
                if is_away:
                    tell(f"{url} is back")
                is_away = False
                if once:
                    typer.echo(f"the past is unchanged; {num_new} streams have new releases")
                    return
            except connection_errors() as error:
                if once:
                    raise ConnectionError(f"no centre answers at {url} ({reason_of(error)}); is it running?") from error
                if not is_away:
                    tell(f"{url} is away ({reason_of(error)}); trying again")
                is_away = True
            time.sleep(every)
