"""`toolrl report RUN --serve`: all episodes of a run, from an index, while it goes on, and nothing but the run."""

from __future__ import annotations

import json
import queue
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.protocols import BuildContext, StepReport
from toolrl.runs.folder import RunFolder
from toolrl.types import Episode
from toolrl_plugin_report import serve as serve_module
from toolrl_plugin_report.index import make_index, read_index, read_member
from toolrl_plugin_report.observers import ReportObserver

MakeRun = Callable[..., RunFolder]


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """`serve(run)`: the address of a server of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(run: Path) -> str:
        command = [sys.executable, "-m", "toolrl", "report", str(run), "--serve", "--port", "0"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        said = started[-1].stdout.readline() + started[-1].stdout.readline()
        return str(re.findall(r"http://127\.0\.0\.1:\d+/", said)[0])

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


def ask(url: str, path: str = "", values: Any = None, host: str | None = None) -> tuple[int, str]:
    query = f"?{urllib.parse.urlencode(values)}" if values else ""
    request = urllib.request.Request(url + path + query, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_served_page_has_every_episode_and_follows_the_run(
    make_run: MakeRun, make_episode: Callable[..., Episode], serve: Callable[[Path], str], open_page: Any
) -> None:
    folder = RunFolder.create(make_run(steps=40).directory, {}, total_steps=50, resume=True)
    folder.rewind(40)
    folder.write_summary({"status": "running"})
    page = open_page(serve(folder.directory), "#episode=t1%231&step=40")
    page.wait_for_selector("#detail .text.model")
    page.locator(".verdicts b", has_text="82").first.wait_for()
    assert page.locator("#detail h3").inner_text() == "t1#1"
    for index in range(3):
        folder.episode_store.add(make_episode(index, round_id="train-41", question="Is it new?"))
    page.locator(".verdicts b", has_text="85").first.wait_for()
    with page.expect_response(lambda answer: "/live" in answer.url and "000041-train" in answer.text()):
        folder.metrics.append(StepReport(41, "train", {"accuracy": 0.7}), folder.episode_store.close_step(41, "train"))
    page.get_by_label("all steps").select_option("41", timeout=15_000)
    assert page.locator("#list li").all_inner_texts()[0].startswith("✓ Is it new?")
    assert page.locator("#list li").count() == 3
    page.locator("#list button").nth(2).click()
    page.locator("#detail h3", has_text="t2#2").wait_for()
    folder.close()


def test_only_the_run_is_served_and_only_to_this_machine(
    make_run: MakeRun, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    folder = make_run()
    outside = make_run("outside", steps=1)
    (folder.directory / "episodes" / "000007-train.jsonl.gz").symlink_to(
        outside.directory / "episodes" / "000001-train.jsonl.gz"
    )
    (folder.directory / "episodes" / "000008-train.jsonl.gz").write_bytes(b"")  # by a kill
    url = serve(folder.directory)
    good = {"file": "000002-train", "line": 1, "id": "t1#1"}
    assert json.loads(ask(url, "episode", good)[1])["episode"]["id"] == "t1#1"
    for path in (
        "config.yaml",
        "../outside/config.yaml",
        "episodes/000001-train.jsonl.gz",
        "%2e%2e/outside/config.yaml",
    ):
        assert ask(url, path)[0] == 404
    for change in (
        {"file": "../../outside/episodes/000001-train"},
        {"file": "000007-train"},
        {"line": 99},
        {"id": "t0#0"},
    ):
        assert ask(url, "episode", {**good, **change})[0] == 404
    assert ask(url, host="evil.example")[0] == 403
    for _ in range(100):
        if "All" in (note := json.loads(ask(url, "live")[1])["note"]):
            break
        time.sleep(0.1)
    assert note.startswith("All"), note


def test_the_index_that_a_run_keeps_is_that_of_its_files(
    make_run: MakeRun, make_episode: Callable[..., Episode]
) -> None:
    config = {"algorithm": {"baseline": "leave_one_out", "scale": "std", "group_size": 1}}
    folder = RunFolder.create(make_run().directory.parent / "kept", config, total_steps=1)
    observer = ReportObserver(None, BuildContext("report"))
    for index in range(70):
        episode = make_episode(index, correct=index % 2 == 0)
        folder.episode_store.add(episode)
        observer.toolrl_episode_end(episode)
    folder.metrics.append(StepReport(1, "train", {}), folder.episode_store.close_step(1, "train"))
    observer.toolrl_step_end(folder, StepReport(1, "train", {}))
    (file,) = folder.episode_store.files()
    kept = read_index(file)
    assert kept == make_index(file, config)
    assert kept is not None
    # One member of the file is enough to read an episode.
    assert json.loads(read_member(file, 2, kept.members)[5])["id"] == "t69#69"
    assert read_member(file, 1, kept.members) == read_member(file, 1, [])
    file.path.write_bytes(file.path.read_bytes() + b"\0")
    assert read_index(file) is None  # of another file than this


def test_a_served_search_reads_every_episode(make_run: MakeRun, serve: Callable[[Path], str], open_page: Any) -> None:
    folder = make_run(steps=40, result="it exploded")
    url = serve(folder.directory)
    page = open_page(url, "#tab=json")
    page.locator("html[data-loaded=all]").wait_for()
    page.get_by_label("search").fill("It  Exploded")
    page.locator("output", has_text="82 shown").wait_for()
    page.get_by_label("search").fill("nowhere to be found")
    page.locator("output", has_text="0 of 82 shown").wait_for()
    page.get_by_label("search").fill("")
    page.locator("#list button").first.click()
    page.locator("#detail pre", has_text="weight_versions").wait_for()
    asked = {"file": "000002-train", "line": 1, "id": "t1#1"}
    assert json.loads(ask(url, "record", asked)[1])["weight_versions"]
    assert ask(url, "record", {**asked, "id": "t0#0"})[0] == 404
    assert ask(url, "favicon.ico")[0] == 204


def test_a_folder_of_runs_is_served_with_a_list_of_them(
    make_run: MakeRun, serve: Callable[[Path], str], open_page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_run("one").directory.parent
    (root / "sub").mkdir()
    make_run("sub/a&b #2", error=ValueError("bad"))
    (root / "link").symlink_to(root / "one")
    url = serve(root)
    page = open_page(url + "runs/one/")
    page.locator("#detail h3").wait_for()
    index = ask(url)[1]
    links = re.findall(r'<a href="([^"]+)">([^<]+)</a>', index)
    assert sorted(links) == [("runs/one/", "one"), ("runs/sub/a%26b%20%232/", "sub/a&amp;b #2")]
    assert "failed" in index
    assert "<!doctype html>" in ask(url, "runs/sub/a%26b%20%232/")[1]
    for path in ("runs/link/", "runs/../one/", "runs/one/config.yaml", "runs/", "live"):
        assert ask(url, path)[0] == 404
    assert main(["report", str(root)]) == 2
    assert "--serve" in capsys.readouterr().err


def test_a_port_that_is_taken_and_options_that_do_nothing(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(make_run().directory)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["report", run, "--serve", "--port", str(taken.getsockname()[1])]) == 1
    assert "Choose another --port" in capsys.readouterr().err
    assert main(["report", run, "--serve", "--output", "x.html"]) == 2
    assert "Leave out --output" in capsys.readouterr().err


def test_a_client_that_sends_half_a_request_is_dropped(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module._Handler, "timeout", 0.3)
    run, addresses = serve_module.ServedRun(make_run()), queue.Queue[str]()
    arguments = (run, "127.0.0.1", 0, addresses.put)
    threading.Thread(target=serve_module.serve, args=arguments, daemon=True).start()
    address = urllib.parse.urlsplit(addresses.get(timeout=30))
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.")
        assert client.recv(100) == b""
