"""The whole way to a host, against a real sshd and a second engine: put up, leave alone, replace, restore."""

from __future__ import annotations

import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.config import HostConfig
from dih20.console import Console
from dih20.deploy.apply import deploy
from dih20.deploy.wanted import Wanted, WantedImage
from dih20.errors import ContainerConflict, DeployError, DeployLocked, PreflightFailed
from tests.deploy.stand import make_tree, make_wheel, wanted_for, wheel_of

pytestmark = [pytest.mark.docker, pytest.mark.ssh]
MakeHost = Callable[..., HostConfig]


@pytest.fixture
def wish(make_host: MakeHost, image: WantedImage, tmp_path: Path, clean_host: Any) -> Wanted:
    """An image, a wheel and an engine tree for a host without containers."""
    mount = tmp_path / "data"
    mount.mkdir()
    host = make_host(mounts=[{"host": str(mount), "container": "/data", "read_only": True}])
    wheels = (wheel_of(make_wheel(tmp_path)),)
    return wanted_for(host, image=image, wheels=wheels, tree=make_tree(tmp_path / "tree"))


def say(container: Any, *argv: str) -> str:
    code, out = container.exec_run(list(argv))
    assert code == 0, out
    return str(out.decode())


def test_a_deploy_puts_up_the_container_and_a_second_one_does_nothing(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    for image in clean_host.images.list(name="di-h20"):
        clean_host.images.remove(image.id, force=True)
    result = deploy(ui, engine, wish)
    container = clean_host.containers.get("di-h20")
    assert container.id == result["container"]
    assert container.status == "running"
    assert say(container, "cat", "/opt/di/made") == "one\n"
    assert (
        say(container, "python3", "-c", "import h20_sample; print(h20_sample.VERSION)") == "1.0\n"
    )
    assert say(container, "/opt/di/engine/run.sh") == "run\n"
    assert say(container, "sh", "-c", "ls -A /mnt") == ""  # neither wheel nor archive stays inside
    assert [c["status"] for c in result["checks"]] == ["not run", "not applicable", "ok"]
    transfers = [a for a in result["plan"]["actions"] if a["verb"] == "transfer"]
    assert transfers[0]["target"].startswith("1 of 2 layers")

    again = deploy(ui, engine, wish)
    assert again["plan"]["noop"]
    assert again["container"] == container.id


def test_the_runtime_image_keeps_what_the_image_said_of_itself(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    deploy(ui, engine, wish)
    config = clean_host.images.get(wish.runtime_tag).attrs["Config"]
    assert config["Cmd"] == ["/bin/bash"]
    assert not config["Entrypoint"]
    assert not [pair for pair in config["Env"] if pair.startswith("PIP_")]
    assert config["Labels"]["dih20.wheels"] == wish.wheel_set
    assert config["Labels"]["dih20.lock"] == "l" * 64


def test_only_a_plan_is_made_when_only_a_plan_is_wanted(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    shutil.rmtree(wish.host.work_dir, ignore_errors=True)
    result = deploy(ui, engine, wish, only_plan=True)
    assert not result["plan"]["noop"]
    assert clean_host.containers.list(all=True) == []
    assert not Path(wish.host.work_dir).exists()


def test_another_configuration_needs_the_replace_option_and_keeps_the_old_container(
    wish: Wanted, make_host: MakeHost, engine: Any, clean_host: Any, ui: Console
) -> None:
    first = deploy(ui, engine, wish)["container"]
    other = wanted_for(make_host(memlock=1 << 19), image=wish.image, wheels=wish.wheels)
    with pytest.raises(ContainerConflict, match="another configuration"):
        deploy(ui, engine, other)
    assert clean_host.containers.get("di-h20").id == first

    second = deploy(ui, engine, other, replace=True)["container"]
    assert clean_host.containers.get("di-h20").id == second
    previous = clean_host.containers.get("di-h20-previous")
    assert (previous.id, previous.status) == (first, "exited")
    assert len(clean_host.containers.list(all=True)) == 2


def test_a_deploy_beside_a_container_that_serves_does_not_touch_it(
    wish: Wanted, make_host: MakeHost, engine: Any, clean_host: Any, ui: Console
) -> None:
    first = deploy(ui, engine, wish)["container"]
    serving = clean_host.containers.get("di-h20")
    serving.exec_run(["sleep", "600"], detach=True)  # whatever does more than wait counts
    started = serving.attrs["State"]["StartedAt"]
    other = wanted_for(make_host(memlock=1 << 19), image=wish.image, wheels=wish.wheels)
    with pytest.raises(ContainerConflict, match="another configuration"):
        deploy(ui, engine, other)
    second = deploy(ui, engine, other, replace=True)["container"]
    serving.reload()
    assert (serving.status, serving.attrs["State"]["StartedAt"]) == ("running", started)
    upcoming = clean_host.containers.get("di-h20-next")
    assert (upcoming.id, upcoming.status) == (second, "exited")
    assert deploy(ui, engine, other)["plan"]["noop"]
    assert clean_host.containers.get("di-h20").id == first
    deploy(ui, engine, wish)  # the old configuration is wanted again
    assert [c.name for c in clean_host.containers.list(all=True)] == ["di-h20"]


def test_the_container_waits_for_a_permission_that_lasts_for_one_start(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    deploy(ui, engine, wish)
    container = clean_host.containers.get("di-h20")
    folder = Path(wish.host.work_dir) / "run" / wish.config[:12]
    assert stat.S_ISFIFO((folder / "permission").stat().st_mode)
    assert stat.S_IMODE((folder / "permission").stat().st_mode) == 0o622
    (folder / "permission").write_text("abc\n")
    assert container.wait(timeout=60)["StatusCode"] == 1  # no server is in this image
    assert b"[launch] start abc" in container.logs()
    container.start()
    wait_for(lambda: container.logs().count(b"waiting for ./inv serve") == 2)
    container.reload()
    assert container.status == "running"


def wait_for(holds: Callable[[], bool], limit_s: float = 30) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)


def test_the_old_container_runs_again_when_the_new_one_fails(
    wish: Wanted, make_host: MakeHost, engine: Any, clean_host: Any, ui: Console, tmp_path: Path
) -> None:
    first = deploy(ui, engine, wish)["container"]
    broken = make_wheel(
        tmp_path, name="h20_broken", body="raise RuntimeError('broken on purpose')\n"
    )
    worse = wanted_for(wish.host, image=wish.image, wheels=(*wish.wheels, wheel_of(broken)))
    with pytest.raises(DeployError) as failed:
        deploy(ui, engine, worse, replace=True)
    assert "broken on purpose" in failed.value.found
    current = clean_host.containers.get("di-h20")
    assert (current.id, current.status) == (first, "running")
    assert len(clean_host.containers.list(all=True)) == 1
    (evidence,) = (tmp_path / "build" / "logs").glob("deploy-di-h20-*")
    assert {"inspect.json", "container.log"} <= {p.name for p in evidence.iterdir()}
    assert str(evidence) in failed.value.remedy


def test_a_stopped_container_stays_stopped_when_its_replacement_fails(
    wish: Wanted, make_host: MakeHost, engine: Any, clean_host: Any, ui: Console
) -> None:
    deploy(ui, engine, wish)
    clean_host.containers.get("di-h20").stop(timeout=1)
    too_much = wanted_for(make_host(memlock=-1), image=wish.image, wheels=wish.wheels)
    if _may_lock_without_limit(clean_host, wish):
        pytest.fail("this machine grants memlock -1: the case needs one that does not")
    with pytest.raises(DeployError, match="cannot start"):
        deploy(ui, engine, too_much, replace=True)
    assert clean_host.containers.get("di-h20").status == "exited"


def _may_lock_without_limit(client: Any, wish: Wanted) -> bool:
    """Say whether this machine's engine may give more than the limit of its own process."""
    import resource

    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY


def test_our_stopped_container_with_the_wanted_configuration_is_started_again(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    first = deploy(ui, engine, wish)["container"]
    clean_host.containers.get("di-h20").stop(timeout=1)
    assert deploy(ui, engine, wish)["container"] == first
    assert clean_host.containers.get("di-h20").status == "running"


def test_a_foreign_container_of_that_name_is_refused_with_id_and_owner(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console, standin_image: str
) -> None:
    foreign = clean_host.containers.create(standin_image, "sleep 60", name="di-h20")
    with pytest.raises(ContainerConflict) as refused:
        deploy(ui, engine, wish, replace=True)
    assert foreign.id[:12] in refused.value.found
    assert "owner dih20 from its image, but made by hand" in refused.value.found
    assert clean_host.containers.get("di-h20").id == foreign.id


def test_leftovers_of_a_crash_are_cleared_away(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console, standin_image: str
) -> None:
    labels = {"dih20.owner": "dih20", "dih20.config": "c" * 64}
    clean_host.containers.create(standin_image, "sleep 60", name="di-h20-next", labels=labels)
    deploy(ui, engine, wish)
    assert [c.name for c in clean_host.containers.list(all=True)] == ["di-h20"]


def test_of_two_deploys_at_once_one_gets_the_lock(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console
) -> None:
    outcomes: list[object] = []
    together = threading.Barrier(2)

    def attempt() -> None:
        together.wait()
        try:
            outcomes.append(deploy(Console(as_json=True), engine, wish))
        except (DeployLocked, ContainerConflict) as refused:
            outcomes.append(refused)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [o for o in outcomes if isinstance(o, DeployLocked | ContainerConflict)]
    # One that looks at the host when the other has ended already is not refused: it finds nothing to do.
    done = [o for o in outcomes if isinstance(o, dict) and not o["plan"]["noop"]]
    assert (len(outcomes), len(done)) == (2, 1), outcomes
    assert len(refused) <= 1, outcomes
    assert clean_host.containers.get("di-h20").status == "running"
    assert not (Path(wish.host.work_dir) / ".deploy-lock").exists()


def test_an_unfit_host_is_refused_before_anything_is_sent(
    wish: Wanted, make_host: MakeHost, engine: Any, clean_host: Any, ui: Console
) -> None:
    shutil.rmtree(wish.host.work_dir, ignore_errors=True)
    with pytest.raises(PreflightFailed) as failed:
        deploy(ui, engine, wanted_for(make_host(gpus=8), image=wish.image))
    assert "no GPU runtime" in failed.value.found
    assert not Path(wish.host.work_dir).exists()
    assert clean_host.containers.list(all=True) == []


def test_a_private_dev_shm_is_as_large_inside_as_asked(
    make_host: MakeHost, image: WantedImage, engine: Any, clean_host: Any, ui: Console
) -> None:
    host = make_host(ipc="private", shm_size_gb=0.25)
    deploy(ui, engine, wanted_for(host, image=image))
    assert clean_host.containers.get("di-h20").attrs["HostConfig"]["ShmSize"] == 250_000_000


def test_a_container_that_got_less_than_asked_fails_with_actual_and_required_values(
    wish: Wanted, engine: Any, clean_host: Any, ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage: the engine is asked for less than the configuration says."""
    from dih20.deploy import container as container_module

    honest = container_module._host_config

    def stingy(host: HostConfig) -> dict[str, Any]:
        values = honest(host)
        values["Ulimits"][0] |= {"Soft": 65536, "Hard": 65536}
        return values

    monkeypatch.setattr(container_module, "_host_config", stingy)
    with pytest.raises(DeployError) as failed:
        deploy(ui, engine, wish)
    assert "ulimit memlock is 65536/65536" in failed.value.found
    assert f"ulimit memlock {1 << 20}" in failed.value.expected
    assert clean_host.containers.list(all=True) == []


def test_a_connection_that_breaks_in_the_middle_is_said_and_leaves_the_host_usable(
    wish: Wanted,
    make_host: MakeHost,
    engine: Any,
    clean_host: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dih20.deploy import inside
    from dih20.errors import ConnectFailed
    from dih20.hosts.ssh import SshRunner

    ui = Console()  # made here, so that what it says is captured
    first = deploy(ui, engine, wish)["container"]
    other = wanted_for(make_host(memlock=1 << 19), image=wish.image, wheels=wish.wheels)
    honest_look = inside.read_back_inside
    honest_session = SshRunner.session
    runners: list[SshRunner] = []

    def noted(runner: SshRunner) -> Any:
        runners.append(runner)
        return honest_session(runner)

    def break_off(*args: Any) -> None:
        runners[-1]._transport.close()
        honest_look(*args)

    with monkeypatch.context() as broken:
        broken.setattr(SshRunner, "session", noted)
        broken.setattr("dih20.deploy.apply.read_back_inside", break_off)
        with pytest.raises(ConnectFailed, match="broke"):
            deploy(ui, engine, other, replace=True)
    assert "docker start di-h20" in capsys.readouterr().out
    assert clean_host.containers.get("di-h20").id == first

    shutil.rmtree(Path(wish.host.work_dir) / ".deploy-lock")  # as the message of the lock says
    assert deploy(ui, engine, other, replace=True)["container"] != first
    assert {c.name for c in clean_host.containers.list(all=True)} == {"di-h20", "di-h20-previous"}
