"""`ratemesh certs`, `node`, `router` and `launch`: sites that share nothing but a network."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.options import ConfigFile, DataDir, Insecure, Set, group, overrides

certs_app = group(
    "certs", "Certificates for sites, from a private authority.\n\nExample: `ratemesh certs init certs --sites a b c`"
)

LAUNCHED = ("zenoh", "ray")
"""Engines whose nodes are processes of their own."""


@certs_app.command("init", context_settings={"allow_extra_args": True})
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder for the files; an authority that is there is used again.")],
    sites: Annotated[
        list[str], typer.Option("--sites", help="Names of the sites, one after the other. A name is an identity.")
    ],
) -> None:
    """Make a private authority and a certificate for every site.

    Give every site `ca.pem` and its own `NAME.pem` and `NAME.key`, over a channel you trust. Keep `ca.key` to yourself:
    whoever has it can make sites.

    Example: `ratemesh certs init certs --sites clinic-a clinic-b clinic-c`
    """
    from ratemesh.engines.certs import init as make

    made = make(folder, [*sites, *context.args])
    screen.say("\n".join(str(path) for path in made))
    screen.say(f"Give each site ca.pem and its own two files; keep {folder / 'ca.key'} to yourself.")


def node(
    config: Annotated[Path, typer.Option("--config", help="This site's TOML file; see docs/engines.md.")],
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Plain TCP: anyone who reaches the port can read and forge messages.")
    ] = False,
) -> None:
    """Run one site of a mesh: its own data, its own encoder, its own run folder; nobody drives it.

    The file says what all sites agree on (`run`, `config`, `[peers]`) and what is this one's own (`[site]`, `[tls]`).
    A site saves its state after every round: however it ends, start it again with the same command and it goes on.

    Example: `ratemesh node --config clinic-a.toml`
    """
    from ratemesh.experiment.site_files import load_site
    from ratemesh.experiment.standalone import run_node

    spec = load_site(config, insecure=insecure)
    with screen.Board() as board:
        track = board.follow(spec.site.name, spec.shared().rounds)
        summary = run_node(spec, say=lambda line: screen.say(f"{spec.site.name}  {line}"), progress=track)
    screen.say(
        f"Accuracy of this site's features by its own statistics: {100 * summary['accuracy']:.1f} %. Rounds: "
        f"{summary['rounds']}, of which {summary['outside_theorem']} lacked fresh messages (outside the convergence "
        f"theorem); {summary['skipped']} skipped.\nResults: {spec.site.out}"
    )


def router(
    config: Annotated[Path, typer.Option("--config", help="The router's TOML file; see docs/engines.md.")],
    insecure: Insecure = False,
) -> None:
    """Pass messages on between sites that can only call out: no data, no training, ends with Ctrl-C.

    Its certificate's name stands in `relays` of every site's file: what it passes on is believed to come from whom it
    says, so run it on a machine that all sites trust. Sites call it with `connect` and need no `listen`.

    Example: `ratemesh router --config router.toml`
    """
    from ratemesh.engines.zenoh_link import open_session
    from ratemesh.experiment.site_files import load_router

    spec = load_router(config, insecure=insecure)
    session = open_session(spec.link(), None, spec.fingerprint().hex())
    told_to_end = threading.Event()
    before = {n: signal.signal(n, lambda *_: told_to_end.set()) for n in (signal.SIGINT, signal.SIGTERM)}
    screen.say(f"{spec.router.name}  passes on what comes to {', '.join(spec.router.listen)}; Ctrl-C ends it.")
    told_to_end.wait()
    for number, handler in before.items():  # a second Ctrl-C ends it, however long closing takes
        signal.signal(number, handler)
    session.close()


def launch(
    config: ConfigFile,
    engine: Annotated[
        str, typer.Option("--engine", help="zenoh: a mesh of sites; ray: actors on a cluster of this machine.")
    ] = "zenoh",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for all sites. Default: next free runs/run-NNN.")
    ] = None,
    set_: Set = None,
    insecure: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Try a whole mesh of real processes on this machine.

    Engine zenoh: one `ratemesh node` a node, with certificates, on the loopback interface. What is left in the folder
    is what real sites need: certificates, a TOML file each, and their run folders. Kill a site and start it again with
    `ratemesh node --config OUT/node-1.toml`: the others go on, and it comes back. Engine ray: one actor a node on a Ray
    cluster of this machine alone; the folder is that of any run.

    Example: `ratemesh launch experiments/smoke.toml --engine zenoh --out runs/mesh`
    """
    from ratemesh.errors import InputError
    from ratemesh.experiment.config import load_config
    from ratemesh.experiment.experiment import next_free, run
    from ratemesh.experiment.launch import launch as start
    from ratemesh.specs import nearest

    if engine not in LAUNCHED:
        raise InputError(f"--engine must be one that starts processes; got '{engine}'. {nearest(engine, LAUNCHED)}")
    if insecure and engine != "zenoh":
        raise InputError("--insecure must go with --engine zenoh; ray has no certificates to do without. Leave it out.")
    given = overrides(data_dir, set_)
    folder, settings = out or next_free(), load_config(config, given)
    if engine == "zenoh":
        metrics = start(settings, folder, insecure=insecure)
    else:
        if settings.engine.name != engine:
            settings = load_config(config, [*given, f'engine={{name="{engine}"}}'])
        with screen.Board() as board:
            metrics = run(settings, folder, progress=board.follow(folder.name, settings.rounds)).metrics
    screen.table([metrics])
    screen.say(f"Results: {folder}")
