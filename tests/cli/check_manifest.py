#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks Kubernetes manifests without a cluster: the keys that the API has at
each place, selectors that match, volumes that exist, and commands that
`sluice` understands.
    tests/cli/check_manifest.py build/sluice MANIFEST...
"""
import subprocess
import sys

import yaml

CONTAINER = {"name", "image", "command", "args", "env", "resources",
             "securityContext", "volumeMounts"}
POD = {"containers", "initContainers", "volumes", "hostPID", "restartPolicy",
       "securityContext", "terminationGracePeriodSeconds"}
KINDS = {
    ("apps/v1", "DaemonSet"): {"selector", "template"},
    ("batch/v1", "Job"): {"backoffLimit", "template"},
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "mpiImplementation", "slotsPerWorker", "runPolicy", "mpiReplicaSpecs"},
}
POD_SECURITY = {"runAsUser", "runAsGroup", "runAsNonRoot"}
SECURITY = POD_SECURITY | {"allowPrivilegeEscalation",
                           "readOnlyRootFilesystem", "capabilities"}
SOURCES = {"hostPath": {"path", "type"}, "configMap": {"name"},
           "persistentVolumeClaim": {"claimName"}}
HOST_PATH_TYPES = {"Directory", "DirectoryOrCreate"}


class Bad(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Bad(what)


def check_keys(value, allowed, where):
    check(isinstance(value, dict), f"{where} is no mapping")
    unknown = set(value) - allowed
    check(not unknown, f"{where}: no such field: {sorted(unknown)}")


def check_options(sluice, words):
    """Each option of `sluice COMMAND`, and of what follows a --."""
    check(words[0] == "sluice" and len(words) > 1, f"{words} is not sluice")
    command, given = words[1], words[2:]
    if "--" in given:
        at = given.index("--")
        check_options(sluice, ["sluice"] + given[at + 1:])
        given = given[:at]
    run = subprocess.run([sluice, command, "--help"], capture_output=True,
                         text=True, check=False)
    check(run.returncode == 0, f"there is no `sluice {command}`")
    known = run.stdout.replace(",", " ").replace("=", " ").split()
    for word in given:
        check(not word.startswith("--") or word in known,
              f"`sluice {command}` has no {word}")


def check_container(sluice, container, volumes, where):
    where = f"{where}: container {container.get('name')}"
    check_keys(container, CONTAINER, where)
    check(container.get("name") and container.get("image"),
          f"{where}: name or image is missing")
    check_keys(container.get("securityContext", {}), SECURITY, where)
    check_keys(container.get("resources", {}), {"requests", "limits"}, where)
    for mount in container.get("volumeMounts", []):
        check_keys(mount, {"name", "mountPath", "readOnly"}, where)
        check(mount["name"] in volumes, f"{where}: no volume {mount['name']}")
        check(mount["mountPath"].startswith("/"), f"{where}: mountPath")
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    for variable in container.get("env", []):
        check_keys(variable, {"name", "value"}, where)
        if variable["name"] == "SLUICE_RUN_DIR":
            check(variable["value"] in paths, f"{where}: no mount for it")
    command = container.get("command", [])
    check(all(isinstance(word, str) for word in command),
          f"{where}: a word of the command is no text")
    if command and command[0] != "sh":
        check_options(sluice, command)


def check_pod(sluice, pod, where):
    check_keys(pod, POD, where)
    volumes = set()
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        check(len(kinds) == 1 and kinds <= set(SOURCES),
              f"{where}: volume {volume}")
        kind = kinds.pop()
        check_keys(volume[kind], SOURCES[kind], where)
        check(kind != "hostPath" or volume[kind]["type"] in HOST_PATH_TYPES,
              f"{where}: volume {volume}")
        volumes.add(volume["name"])
    check_keys(pod.get("securityContext", {}), POD_SECURITY, where)
    check(pod.get("containers"), f"{where}: no container")
    for container in pod["containers"] + pod.get("initContainers", []):
        check_container(sluice, container, volumes, where)


def check_template(sluice, template, where):
    check_keys(template, {"metadata", "spec"}, where)
    check_pod(sluice, template["spec"], where)


def check_document(sluice, document):
    check_keys(document, {"apiVersion", "kind", "metadata", "spec"}, "document")
    kind = (document["apiVersion"], document["kind"])
    where = f"{document['kind']} {document['metadata']['name']}"
    spec = document["spec"]
    check(kind in KINDS, f"{where}: {kind} is not known here")
    check_keys(spec, KINDS[kind], where)
    if document["kind"] == "MPIJob":
        for role, replicas in spec["mpiReplicaSpecs"].items():
            check(role in ("Launcher", "Worker"), f"{where}: role {role}")
            check_keys(replicas, {"replicas", "template", "restartPolicy"},
                       where)
            check_template(sluice, replicas["template"], f"{where}: {role}")
        return
    check_template(sluice, spec["template"], where)
    if document["kind"] == "DaemonSet":
        check(spec["selector"]["matchLabels"].items() <=
              spec["template"]["metadata"]["labels"].items(),
              f"{where}: the selector does not match the pods")
    else:
        check(spec["template"]["spec"].get("restartPolicy") in
              ("OnFailure", "Never"), f"{where}: restartPolicy")


def main():
    sluice, paths = sys.argv[1], sys.argv[2:]
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                documents = list(yaml.safe_load_all(file))
            check(documents, "it is empty")
            for document in documents:
                check_document(sluice, document)
        except (Bad, KeyError, yaml.YAMLError) as error:
            print(f"{path}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
