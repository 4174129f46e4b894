"""Check docker/k8s with the schemas of Kubernetes and of the MPI operator, and against the image.

No cluster is used. The tests compare what a schema cannot check (ports, paths, numbers of ranks), and run the
ssh server of a worker to see whether it accepts its options.
"""

import argparse
import copy
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from hvdgrade.service import models
from hvdgrade.worker import command, credential

ROOT = Path(__file__).parents[2]
K8S = ROOT / "docker" / "k8s"
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
VERSIONS = [
    "1.29",
    "1.37",
]  # the oldest version that clouds still offered in 2026, and the newest
PLAIN = ["grade.yaml", "jupyterlab.yaml", "data.yaml", "worker.yaml"]  # kinds of Kubernetes itself
SCHEMA = json.loads((K8S / "mpijob.schema.json").read_text())


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((K8S / name).read_text()))


def mpijob() -> dict:
    (job,) = documents("mpijob.yaml")
    return job


def pods() -> dict[str, dict]:
    """Yield the specification of every pod in the manifests."""
    found = {
        f"mpijob {name}": replica["template"]["spec"]
        for name, replica in mpijob()["spec"]["mpiReplicaSpecs"].items()
    }
    for name in PLAIN:
        for document in documents(name):
            if "template" in document["spec"]:
                found[name] = document["spec"]["template"]["spec"]
    return found


def validate_mpijob(job: dict, version: str):
    """Validate the operator's fields with its schema, and the pod templates with that of Kubernetes."""
    jsonschema.Draft202012Validator(SCHEMA).validate(job)
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **replica["template"]}
        kubernetes_validate.validate(pod, version, strict=True)


# --- schemas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_manifests_are_valid(name, version):
    found = documents(name)
    assert found
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_mpijob_is_valid(version):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validate_mpijob(mpijob(), version)


@pytest.mark.parametrize(
    "place, value",
    [
        ("spec.slotsPerWorkers", 2),  # a wrong name, which the API server drops without a message
        ("spec.slotsPerWorker", "2"),
        ("spec.cleanPodPolicy", "Running"),  # the place of this field in older versions
        ("spec.runPolicy.cleanPodPolicy", "Never"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", 2),
        ("spec.mpiReplicaSpecs.Worker.restartPolicy", "Always"),
        ("spec.mpiReplicaSpecs.Workers", {"template": {"spec": {}}}),
        ("spec.mpiReplicaSpecs.Worker.template.spec.shmSize", "1Gi"),
        ("spec.mpiReplicaSpecs.Worker.template.spec.containers", "worker"),
        ("apiVersion", "kubeflow.org/v1"),
    ],
)
def test_the_schema_finds_mistakes_in_the_mpijob(place, value):
    job = copy.deepcopy(mpijob())
    *path, last = place.split(".")
    inner = job
    for name in path:
        inner = inner[name]
    inner[last] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate_mpijob(job, VERSIONS[-1])


# --- settings that must agree -------------------------------------------------------------------------------


def test_ranks_hosts_and_slots_of_the_mpijob_agree():
    spec = mpijob()["spec"]
    workers, slots = spec["mpiReplicaSpecs"]["Worker"]["replicas"], spec["slotsPerWorker"]
    command = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["-np"] == str(workers * slots)
    assert options["--map-by"] == f"ppr:{slots}:node"
    assert options["--hostfile"] == "/etc/mpi/hostfile"  # the path at which the operator mounts it
    passed_on = {
        value for option, value in zip(command, command[1:], strict=False) if option == "-x"
    }
    container = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert passed_on == {each["name"] for each in container["env"]} - {"PRTE_MCA_plm_ssh_args"} | {
        "PATH"
    }


def test_launcher_and_workers_agree_on_ssh(tmp_path):
    spec = mpijob()["spec"]
    (launcher,) = pods()["mpijob Launcher"]["containers"]
    (worker,) = pods()["mpijob Worker"]["containers"]
    (client,) = [e["value"] for e in launcher["env"] if e["name"] == "PRTE_MCA_plm_ssh_args"]
    port = re.search(r"-p (\d+)", client).group(1)
    assert worker["args"][:2] == ["-p", port]
    assert worker["ports"] == [{"name": "ssh", "containerPort": int(port)}]
    assert int(port) > 1023  # a port that needs neither root nor a capability
    assert "HostKey=" + spec["sshAuthMountPath"] + "/id_rsa" in worker["args"]
    assert (
        spec["sshAuthMountPath"] == "/home/learner/.ssh" and "useradd --create-home" in DOCKERFILE
    )

    sshd = shutil.which("sshd", path="/usr/sbin:/sbin")
    if not sshd:
        pytest.skip("the rest needs the package openssh-server")
    key = tmp_path / "id_rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True, timeout=60)
    if os.getuid() == 0:  # as root, sshd needs a folder that its service makes
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    start = worker["command"].index(sshd)
    line = [*worker["command"][start:], *worker["args"]]
    line = [word.replace(f"{spec['sshAuthMountPath']}/id_rsa", str(key)) for word in line]
    # Only checks its options.
    answer = subprocess.run([*line, "-t"], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
    wrong = subprocess.run([*line, "-o", "UsePan=no", "-t"], capture_output=True, timeout=60)
    assert wrong.returncode != 0


def test_jupyterlab_uses_the_port_and_path_of_the_image():
    claim, deployment, service = documents("jupyterlab.yaml")
    (container,) = pods()["jupyterlab.yaml"]["containers"]
    exposed = int(re.search(r"^EXPOSE (\d+)$", DOCKERFILE, re.M).group(1))
    assert container["ports"] == [{"name": "http", "containerPort": exposed}]
    assert service["spec"]["ports"] == [{"name": "http", "port": exposed, "targetPort": "http"}]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/api", "port": "http"}
        assert "/api\\" in DOCKERFILE  # the health check of the image uses the same path
    volumes = {each["name"]: each for each in pods()["jupyterlab.yaml"]["volumes"]}
    used = volumes["work"]["persistentVolumeClaim"]["claimName"]
    assert used == claim["metadata"]["name"]


def mounts(container: dict) -> dict[str, dict]:
    return {each["name"]: each for each in container["volumeMounts"]}


def test_the_submission_is_mounted_as_a_plain_file():
    """The files of a mounted ConfigMap are links, and the grader follows no links."""
    (container,) = pods()["grade.yaml"]["containers"]
    mount = mounts(container)["submission"]
    assert mount["subPath"] == "assessment.py" and mount["readOnly"] is True
    assert container["args"][:3] == ["hvdgrade", "run", mount["mountPath"]]
    assert (
        "create configmap submission --from-file=assessment.py" in (K8S / "grade.yaml").read_text()
    )


def commands(name: str) -> list[str]:
    """Return the kubectl commands at the top of a manifest, in their order."""
    lines = [line.lstrip("# ") for line in (K8S / name).read_text().splitlines() if line[:1] == "#"]
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("kubectl ")]


def test_the_previous_grading_job_is_deleted_first():
    """`apply` of an existing job does nothing, so `logs` would show the report of the previous one."""
    said = commands("grade.yaml")
    (job,), pod = documents("grade.yaml"), pods()["grade.yaml"]
    (given,) = [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v]
    first, *rest = (command.split() for command in said)
    assert first[1:3] == ["delete", "--ignore-not-found"]
    assert set(first[-2:]) == {f"job/{job['metadata']['name']}", f"configmap/{given}"}
    assert [words[1] for words in rest] == ["create", "apply", "wait", "logs"]
    assert rest[0][2:4] == ["configmap", given]


@pytest.mark.parametrize("name", ["grade.yaml", "worker.yaml"])
def test_the_grading_pod_has_whole_cores(name):
    """Kubernetes gives whole cores to a pod only if limits and requests of all its containers are equal.

    Source: https://kubernetes.io/docs/tasks/configure-pod-container/quality-service-pod/
    """
    pod = pods()[name]
    for container in [*pod["containers"], *pod["initContainers"]]:
        asked = container["resources"]
        assert asked["requests"] == asked["limits"] and set(asked["limits"]) == {"cpu", "memory"}
        assert asked["limits"]["cpu"].isdecimal()
    ranks = pod["containers"][0]["args"][-1]
    assert pod["containers"][0]["resources"]["limits"]["cpu"] == ranks


def test_jupyterlab_finds_the_data_that_its_pod_downloaded():
    pod = pods()["jupyterlab.yaml"]
    (container,) = pod["containers"]
    (get,) = [each for each in pod["initContainers"] if each["name"] == "data"]
    home = re.search(r"useradd --create-home .* (\w+) \\$", DOCKERFILE, re.M).group(1)
    place = f"/home/{home}/.cache/hvdlab"  # where hvdlab looks by default
    assert mounts(container)["data"]["mountPath"] == mounts(get)["data"]["mountPath"] == place
    assert "--dir" not in get["command"][-1]
    for name in ("cifar10", "fashion_mnist"):
        assert f"hvdlab data {name} --or-synthetic" in get["command"][-1]


def test_the_hub_reads_the_data_that_one_job_downloaded():
    (values,) = documents("hub-values.yaml")
    claim, job = documents("data.yaml")
    single = values["singleuser"]
    volumes = {each["name"]: each for each in single["storage"]["extraVolumes"]}
    read = volumes["data"]["persistentVolumeClaim"]
    assert read == {"claimName": claim["metadata"]["name"], "readOnly": True}
    (mount,) = [each for each in single["storage"]["extraVolumeMounts"] if each["name"] == "data"]
    assert mount["readOnly"] is True and single["extraEnv"]["HVDLAB_DATA"] == mount["mountPath"]
    # Because the pods of a class are on many nodes.
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]

    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    for name in ("cifar10", "fashion_mnist"):
        assert (
            f"data {name} --dir {mounts(container)['data']['mountPath']}"
            in container["command"][-1]
        )
    assert "-f docker/k8s/data.yaml" in (K8S / "hub-values.yaml").read_text()


def test_documented_commands_wait_before_they_read_logs():
    """A pod that still downloads its data has no log, and `kubectl logs -f` fails."""
    for name, waited in (
        ("grade.yaml", f"pod -l job-name={documents('grade.yaml')[0]['metadata']['name']} "),
        ("mpijob.yaml", f"mpijob/{mpijob()['metadata']['name']} "),
    ):
        lines = [line for line in (K8S / name).read_text().splitlines() if "kubectl " in line]
        (logs,) = [number for number, line in enumerate(lines) if "kubectl logs -f" in line]
        assert "kubectl wait --for=condition=" in lines[logs - 1] and waited in lines[logs - 1]


@pytest.mark.parametrize(
    "name, variable", [("jupyterlab.yaml", "JUPYTER_TOKEN"), ("worker.yaml", credential.VARIABLE)]
)
def test_the_token_is_a_secret_and_is_in_no_file(name, variable):
    (container,) = pods()[name]["containers"]
    (token,) = [each for each in container["env"] if each["name"] == variable]
    assert "value" not in token
    named = token["valueFrom"]["secretKeyRef"]
    made = rf"create secret generic {named['name']} --from-(literal|file)={named['key']}="
    assert re.search(made, (K8S / name).read_text())


def test_the_worker_takes_its_arguments_and_ends_after_its_grading():
    pod = pods()["worker.yaml"]
    (container,) = pod["containers"]
    hvdgrade, name, *arguments = container["args"]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(arguments)
    assert (hvdgrade, name, args.drain, args.workers) == ("hvdgrade", "worker", True, 1)
    assert pod["terminationGracePeriodSeconds"] > models.Assignment.limit_s.default.arg
    # The volume belongs to root, so the worker could not change the mode of its folder.
    assert str(args.spool.parent) == mounts(container)["spool"]["mountPath"]


@pytest.mark.parametrize("name", pods())
def test_no_pod_runs_as_root_or_without_limits(name):
    pod = pods()[name]
    user = int(re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)[-1])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == user
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for container in pod["containers"]:
        assert "memory" in container["resources"]["limits"]


def test_mounted_volumes_exist_and_images_have_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, pod in pods().items():
        there = {volume["name"] for volume in pod.get("volumes", [])}
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["image"] == f"hvdlab:{version}", name
            assert {each["name"] for each in container.get("volumeMounts", [])} <= there, name


@pytest.mark.parametrize("name", [*PLAIN, "mpijob.yaml", "hub-values.yaml"])
def test_paths_in_the_image_exist(name):
    inside = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, re.M).group(1)
    found = re.findall(rf"{inside}/([\w./]+)", (K8S / name).read_text())
    assert found or name in ("grade.yaml", "data.yaml", "worker.yaml")
    for path in found:
        made = path.startswith(".venv/bin/") or path == "notebooks/work"  # by the Dockerfile
        assert made or (ROOT / path).exists(), path


def test_the_hub_mounts_the_disk_that_it_fills():
    (values,) = documents("hub-values.yaml")
    single = values["singleuser"]
    (fill,) = single["initContainers"]
    (mount,) = fill["volumeMounts"]
    assert mount["name"] == single["storage"]["dynamic"]["volumeNameTemplate"]
    assert fill["command"] == ["hvdlab", "notebooks"]
    assert mount["mountPath"] == single["storage"]["homeMountPath"]
    assert fill["image"] == f"{single['image']['name']}:{single['image']['tag']}"
    assert f"--ServerApp.root_dir={single['storage']['homeMountPath']}" in single["cmd"]
    user = int(re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)[-1])
    assert single["uid"] == single["fsGid"] == fill["securityContext"]["runAsUser"] == user
