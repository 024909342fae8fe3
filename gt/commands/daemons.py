"""`gt up`, `gt dispatcher`, `gt worker`: the processes of a service, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gt.daemon.garbage import garbage_later

from .daemon_setup import (
    check_engine,
    check_free,
    check_limits,
    for_workers,
    keep_snapshots_in,
    keys_of_daemons,
    own_service,
    read_config,
    wait_for_workers,
)
from .metrics import LOOPBACK, ExporterProcess, MetricsHost, MetricsPort
from .on_ray import (
    CpusPerWorker,
    IdleSeconds,
    LeastWorkers,
    MostWorkers,
    Placing,
    RayAddress,
    SharedMarks,
    WorkerDevice,
    up_on_ray,
)
from .shared.error_lines import errors_as_lines
from .shared.options import (
    Address,
    ConfigFile,
    Format,
    Group,
    Insecure,
    InstructionLog,
    Level,
    LimitsPath,
    LogFormat,
    LogLevel,
    Policy,
    PolicyName,
    WithData,
)

PoolSize = Annotated[
    str | None,
    typer.Option(
        help="Memory of a worker's tensors, as in 8GB; what finds no room goes out of it (GT_MEMORY_POOL_SIZE)."
    ),
]
SpillThreshold = Annotated[
    str | None,
    typer.Option(help="The share of it in use before anything goes out; default 0.8 (GT_CPU_SPILL_THRESHOLD)."),
]
GroupSize = Annotated[
    str | None,
    typer.Option(help="How many workers of a host NVLink joins, for the planner's prices (GT_NVLINK_GROUP_SIZE)."),
]
PrefetchSize = Annotated[
    str | None,
    typer.Option(help="What may come back before it is read; default 256MiB (GT_PREFETCH_BUFFER_SIZE)."),
]

SnapshotFolder = Annotated[
    Path | None,
    typer.Option(help="Where workers keep snapshots; all hosts must see the same folder (GT_SNAPSHOTS)."),
]


Accounts = Annotated[
    Path | None,
    typer.Option(help="Keep files of what was used and ordered in this folder (docs/multi-user.md); default none."),
]


def up(
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many; default one for each GPU, or as many as the config needs, at least one."),
    ] = None,
    spares: Annotated[
        int, typer.Option(min=0, help="How many more wait, each to take the place of a worker that is lost.")
    ] = 0,
    config: ConfigFile = None,
    limits: LimitsPath = None,
    address: Address = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.text,
    instruction_log: InstructionLog = None,
    with_data: WithData = False,
    memory_pool_size: PoolSize = None,
    cpu_spill_threshold: SpillThreshold = None,
    prefetch_buffer_size: PrefetchSize = None,
    nvlink_group_size: GroupSize = None,
    snapshots: SnapshotFolder = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    insecure: Insecure = False,
    group: Group = None,
    accounts: Accounts = None,
    policy: Policy = PolicyName.fair,
    on: Annotated[
        str | None, typer.Option(help="ray: as actors of a Ray cluster, until `gt down` (docs/ray.md).")
    ] = None,
    ray_address: RayAddress = None,
    least: LeastWorkers = None,
    most: MostWorkers = None,
    device: WorkerDevice = None,
    cpus_per_worker: CpusPerWorker = 1,
    strategy: Placing = None,
    idle: IdleSeconds = 60.0,
    marks: SharedMarks = None,
) -> None:
    """Run a dispatcher and workers on this machine until Ctrl-C or SIGTERM. Daemons that are killed are started again.

    With --on ray they run on the nodes of a Ray cluster, and go on after this command.
    """
    with errors_as_lines():
        import os

        if on is not None:
            check_engine(on, {
                "--spares": spares, "--limits": limits, "--address": address, "--instruction-log": instruction_log,
                "--with-data": with_data, "--metrics-port": metrics_port, "--insecure": insecure, "--group": group,
                "--accounts": accounts,
            })  # fmt: skip
            from gt.ray.service import SizeAsked

            for_workers(memory_pool_size, cpu_spill_threshold, prefetch_buffer_size, nvlink_group_size)
            keep_snapshots_in(snapshots)
            asked = SizeAsked(workers, least, most, device, cpus_per_worker, strategy, idle)
            read = read_config(config)
            log = {"GT_LOG_LEVEL": log_level.value, "GT_LOG_FORMAT": log_format.value}
            needed = 1 if read is None else read.workers_needed()
            up_on_ray(asked, ray_address, config, marks, policy.value, log, needed=needed)
            return

        from gt.daemon.service_folder import SOCKET_NAME, service_folder
        from gt.errors import SessionError
        from gt.service.launch import Local, default_workers, devices_of
        from gt.wire.addresses import check_bind

        if address is not None:
            check_bind(address, keyed=keys_of_daemons(address, insecure=insecure))
            check_free(address)
        for_workers(memory_pool_size, cpu_spill_threshold, prefetch_buffer_size, nvlink_group_size)
        keep_snapshots_in(snapshots)
        exporter = ExporterProcess(metrics_host, metrics_port)
        read = read_config(config)
        check_limits(limits)
        count = workers or default_workers(read, device)
        if read is not None:
            read.mesh_for(count)
        devices = None if device is None else devices_of(device, count)
        ends = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup(1): the terminal is closed
            ends.append(signal.SIGHUP)
        for number in ends:
            signal.signal(number, _stop)
        os.environ |= {"GT_LOG_LEVEL": log_level.value, "GT_LOG_FORMAT": log_format.value}  # daemons inherit them
        options = [] if instruction_log is None else ["--instruction-log", str(instruction_log)]
        options += ["--with-data"] if with_data else []
        options += ["--insecure"] if insecure else []
        options += ["--group", group] if group is not None else []
        options += ["--accounts", str(accounts.absolute())] if accounts is not None else []
        options += ["--limits", str(limits)] if limits is not None else []
        options += ["--policy", policy.value] if policy is not PolicyName.fair else []
        path = None if config is None else str(config)
        folder = service_folder(group) if group is not None and address is None else None
        if folder is not None:
            address = f"ipc://{folder}/{SOCKET_NAME}"
        local = Local(count, address=address, config=path, devices=devices, quiet=False, options=options, spares=spares)
        try:
            exporter.start(local.address)
            if wait_for_workers(local, count, spares):
                waiting = f" and {spares} {'spare' if spares == 1 else 'spares'}" if spares else ""
                typer.echo(
                    f"{count} {'worker' if count == 1 else 'workers'}{waiting} at {local.address}; Ctrl-C stops them"
                )
            elif (ended := local.given_up()) is not None:
                raise SessionError(ended)
            local.wait()
        finally:
            for number in ends:
                signal.signal(number, signal.SIG_IGN)  # once is enough: the rest of this is the orderly end
            local.close()
            exporter.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def dispatcher(
    address: Address = None,
    config: ConfigFile = None,
    limits: LimitsPath = None,
    workers: Annotated[int, typer.Option(min=1, help="How many must join before the first tensor is placed.")] = 1,
    bulk: Annotated[
        str | None, typer.Option(help="Where large data goes, tcp://127.0.0.1:PORT; default beside ADDRESS, any port.")
    ] = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.text,
    instruction_log: InstructionLog = None,
    with_data: WithData = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    insecure: Insecure = False,
    group: Group = None,
    accounts: Accounts = None,
    policy: Policy = PolicyName.fair,
    marks: Annotated[
        Path | None,
        typer.Option(
            help="Where it keeps what the next dispatcher with this folder and address needs to go on with its sessions, the "
            "folder of its workers' --marks; default none."
        ),
    ] = None,
    standby_of: Annotated[
        str | None,
        typer.Option(
            help="The address of another dispatcher, whose place this one takes. Without --address it is on this machine, with "
            "the same --marks, and this one waits until it has ended. With an --address of its own, this one copies what that "
            "one keeps to its own --marks, and takes over when it is told to (gt take-over), or by --lease."
        ),
    ] = None,
    supervised: Annotated[
        bool,
        typer.Option(
            "--supervised", help="systemd, Kubernetes or a loop starts a dispatcher again when this one ends."
        ),
    ] = False,
    lease: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="With --standby-of and --address: also take over when this one and most workers have heard nothing of the other "
            "for so many seconds.",
        ),
    ] = None,
) -> None:
    """Run a dispatcher until Ctrl-C or SIGTERM."""
    with errors_as_lines():
        if standby_of is not None and marks is None:
            raise typer.BadParameter(
                "--standby-of needs --marks: those of that dispatcher, or with an --address of its own an own folder"
            )
        copies = standby_of is not None and address is not None
        if copies and insecure:
            raise typer.BadParameter("a standby needs the keys of the service, which --insecure does without")
        if lease is not None and not copies:
            raise typer.BadParameter("--lease is of a standby: say --standby-of and an --address of its own")
        address = address or standby_of
        from gt.daemon.service_folder import SOCKET_NAME, service_folder

        with garbage_later():
            from gt.dispatcher.process import serve

        path = None if config is None else str(config)
        log = None if instruction_log is None else str(instruction_log)
        exporter = ExporterProcess(metrics_host, metrics_port)
        folder = service_folder(group) if address is None else None
        try:
            status = serve(
                address or f"ipc://{folder}/{SOCKET_NAME}", config=path, workers=workers, log_level=log_level.value,
                bulk=bulk, instruction_log=log, with_data=with_data, log_format=log_format.value,
                listening=exporter.start, insecure=insecure, group=group,
                marks=None if marks is None else str(marks.absolute()), standby=standby_of is not None and not copies,
                primary=standby_of if copies else None, lease=lease, limits=None if limits is None else str(limits),
                accounts=None if accounts is None else str(accounts.absolute()), policy=policy.value,
                supervised=supervised,
            )  # fmt: skip
        finally:
            exporter.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(status)


def worker(
    address: Annotated[
        str | None,
        typer.Option(help="tcp://HOST:PORT or ipc:///PATH; default the dispatcher that you started last here."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda:0, torch:cpu, …; default the first GPU, or the CPU.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Where other workers reach this one, tcp://127.0.0.1:PORT; default a Unix socket."),
    ] = None,
    announce: Annotated[
        str | None, typer.Option(help="The address by which they do, where it is another: that of a tunnel.")
    ] = None,
    log_level: Level = LogLevel.info,
    log_format: Format = LogFormat.text,
    memory_pool_size: PoolSize = None,
    cpu_spill_threshold: SpillThreshold = None,
    prefetch_buffer_size: PrefetchSize = None,
    nvlink_group_size: GroupSize = None,
    snapshots: SnapshotFolder = None,
    marks: Annotated[
        Path | None,
        typer.Option(
            help="Where workers keep what sessions need when one is lost, the same folder for all; default that of your "
            "dispatcher at ADDRESS, if it is on this machine."
        ),
    ] = None,
    spare: Annotated[
        bool, typer.Option("--spare", help="Wait until a worker is lost, and take its place then.")
    ] = False,
    supervised: Annotated[
        bool,
        typer.Option(
            "--supervised",
            help="systemd, Kubernetes or a loop starts a worker again when this one ends: its sessions wait for that.",
        ),
    ] = False,
) -> None:
    """Run one worker of the dispatcher at ADDRESS, until Ctrl-C, SIGTERM or the dispatcher's end."""
    with errors_as_lines():
        import os

        from gt.service.launch import ONE_THREAD
        from gt.sharding import options

        os.environ |= ONE_THREAD  # before this imports NumPy
        for_workers(memory_pool_size, cpu_spill_threshold, prefetch_buffer_size, nvlink_group_size)
        keep_snapshots_in(snapshots)
        os.environ |= options.worker_environment()
        with garbage_later():
            from gt.worker.process import serve

        status = serve(
            address or own_service(), device=device, log_level=log_level.value, listen=listen, announce=announce,
            log_format=log_format.value, marks=None if marks is None else str(marks.absolute()), spare=spare,
            supervised=supervised,
        )  # fmt: skip
    raise typer.Exit(status)


def _stop(*_: Any) -> NoReturn:
    raise typer.Exit(0)
