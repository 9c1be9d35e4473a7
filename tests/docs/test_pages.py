"""The README and the pages of docs/ and benchmarks/: the command line takes their commands, and their links lead
somewhere."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from prefect.utilities.templating import apply_values

from coderl_tasks.cli.arguments import FLOW_SETTINGS, parse_key_values
from coderl_tasks.cli.entry import SUBCOMMANDS, parser_of
from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.server_addresses import sandbox_addresses
from coderl_tasks.settings.setting import parse_settings

DOCS = sorted((PROJECT_ROOT / "docs").glob("*.md"))
PAGES = [PROJECT_ROOT / "README.md", *DOCS, *sorted((PROJECT_ROOT / "benchmarks").glob("*.md"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def commands() -> list[tuple[str, list[str]]]:
    """(page, words) of each line of a code block that is a coderl command, without its comment and what follows it."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        fenced = "".join(re.findall(r"^```sh.*?\n(.*?)^```$", text, re.M | re.S))
        for line in re.findall(r"^    (?:\w+= )*(coderl .+)$", text + re.sub("^", "    ", fenced, flags=re.M), re.M):
            words = shlex.split(re.sub(r"<(\w+)>", r"\1", line), comments=True)
            found.append((page.name, words[1 : words.index(">") if ">" in words else None]))
    return found


@pytest.mark.parametrize(("page", "words"), commands(), ids=str)
def test_a_command_of_the_docs_is_one(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("def compute_reward(completion, ground_truth):\n    return 0.0\n")
    name, *rest = words
    if name in FLOW_SETTINGS:
        model = FLOW_SETTINGS[name]
        parse_settings(model, parse_key_values([word for word in rest if word != "..."], model))
        return
    assert name in SUBCOMMANDS, f"{page}: coderl {' '.join(words)}"
    parser_of(name).parse_intermixed_args(rest)


def anchors(page: Path) -> set[str]:
    """What links to headings of a page may say, as GitHub and mkdocs make it."""
    headings = re.findall(
        r"^#+ (.+)$", CODE.sub(lambda code: "" if code[0].startswith("```") else code[0], page.read_text()), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(CODE.sub("", page.read_text())):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name}: {target}#{anchor}"


def test_the_site_is_built_and_has_every_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT_ROOT, check=True)
    named = yaml.safe_load((PROJECT_ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(re.findall(r"[\w-]+\.md", str(named))) == [page.name for page in DOCS]
    assert "score_group" in (tmp_path / "reference.html").read_text()


def test_every_benchmark_is_on_a_page_of_its_folder() -> None:
    folder = PROJECT_ROOT / "benchmarks"
    pages = {page.name: page.read_text() for page in folder.glob("*.md")}
    index = pages.pop("README.md")
    for script in folder.glob("*.py"):
        assert re.search(rf"\b{script.name}\b", index), f"benchmarks/README.md does not name {script.name}"
    rows = re.findall(r"^\| \[(\w+\.md)\]\(\1\) \|.*\| ([\w.]+\.py(?:, [\w.]+\.py)*) \|$", index, re.M)
    assert {name for name, _ in rows} == pages.keys()
    for name, scripts in rows:
        for script in scripts.split(", "):
            assert f"python benchmarks/{script}" in pages[name], f"{name} does not have the command of {script}"


def test_the_manifests_are_valid_and_give_a_pod_no_more_than_it_needs() -> None:
    text = (PROJECT_ROOT / "docs" / "kubernetes" / "coderl.yaml").read_text()
    manifests = list(yaml.safe_load_all(text))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    named = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    of_sandbox = yaml.safe_load(named["ConfigMap", "sandbox-config"]["data"]["local.yaml"])
    assert of_sandbox == yaml.safe_load((PROJECT_ROOT / "sandbox_config" / "local.yaml").read_text())
    # What Prefect makes of the template, but for PodSpec's two fields that Prefect asks for and Kubernetes ignores.
    template = json.loads(named["ConfigMap", "coderl-jobs"]["data"]["jobs.json"])
    defaults = {name: of["default"] for name, of in template["variables"]["properties"].items()}
    job = apply_values(template["job_configuration"]["job_manifest"], defaults)
    pod_of_job = job["spec"]["template"]["spec"]
    assert (pod_of_job.pop("parallelism"), pod_of_job.pop("completions")) == (1, 1)
    kubernetes_validate.validate(job, "1.37", strict=True)
    environment = {one["name"]: one.get("value") for one in pod_of_job["containers"][0]["env"]}
    replicas = named["StatefulSet", "sandbox"]["spec"]["replicas"]
    assert len(sandbox_addresses([environment["SANDBOX_URL"]])) == replicas
    guarded = {value for each in named["NetworkPolicy", "coderl"]["spec"]["podSelector"]["matchExpressions"]
               for value in each["values"]}  # fmt: skip
    workloads = [manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet")]
    for manifest in (*workloads, job):
        template = manifest["spec"]["template"]
        pod = template["spec"]
        assert template["metadata"]["labels"]["app"] in guarded
        may_ask_the_cluster = pod.get("serviceAccountName") == "coderl-worker"  # which makes the jobs
        assert may_ask_the_cluster or pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
            if container["name"] == "sandbox":  # whose image needs root
                continue
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            secrets = [one for one in container["env"] if re.search("PASSWORD|KEY$|AUTH_STRING$", one["name"])]
            secrets = [one for one in secrets if "SECRET" not in one["name"]]  # the name of one
            assert secrets and all("secretKeyRef" in one["valueFrom"] for one in secrets)
    assert (
        sum(manifest["spec"]["template"]["spec"].get("serviceAccountName") is not None for manifest in workloads) == 1
    )


def test_commands_are_looked_at() -> None:
    assert len(commands()) > 50
    with pytest.raises(ConfigError, match="unknown setting"):
        parse_settings(FLOW_SETTINGS["train"], parse_key_values(["no_such=1"], FLOW_SETTINGS["train"]))
