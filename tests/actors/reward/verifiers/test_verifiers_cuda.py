"""CUDA programs: compiled by nvcc, run on a GPU inside the sandbox. Without a GPU: why they are not."""

import shutil

import pytest

from gleaner.actors.reward.carried import Carried
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.sandbox import gpus
from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.actors.reward.sandbox.port import Isolation
from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
from gleaner.actors.reward.verdicts import Judgement
from gleaner.actors.reward.verifiers.compiled_code import CompiledCodeVerifier
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec
from gleaner.actors.reward.verifiers.registry import make

SUMS = Entry(question="?", tests=({"input": "1000\n", "output": "999000"}, {"input": "5\n", "output": "20"}))
ADD = """
#include <cstdio>
#include <cuda_runtime.h>
__global__ void add(const int* a, int* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + a[i];
}
int main() {
  int n, *a, *c;
  if (scanf("%d", &n) != 1) return 2;
  cudaMalloc(&a, n * sizeof(int));
  cudaMalloc(&c, n * sizeof(int));
  int* host = new int[n];
  for (int i = 0; i < n; i++) host[i] = i;
  cudaMemcpy(a, host, n * sizeof(int), cudaMemcpyHostToDevice);
  add<<<(n + 255) / 256, 256>>>(a, c, n);
  cudaMemcpy(host, c, n * sizeof(int), cudaMemcpyDeviceToHost);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) { fprintf(stderr, "%s\\n", cudaGetErrorString(error)); return 3; }
  long long total = 0;
  for (int i = 0; i < n; i++) total += host[i];
  printf("%lld\\n", total);
  return 0;
}
"""
LANGUAGE = {"language": "cuda", "gpu": True, "compile_s": 60.0, "deadline_s": 10.0, "memory_mb": 4096}
TINY = {"language": "c", "compile": ["true", "{output}"], "source": "main.c", "gpu": True, "compile_s": 1.0}

on_a_gpu = pytest.mark.skipif(
    not gpus.devices() or shutil.which("nvcc") is None, reason="needs a GPU and nvcc on this machine"
)


def made(isolation: str = "auto", **params: object) -> CompiledCodeVerifier:
    params = {"compile_mb": 4096, **params}
    verifier = make(
        VerifierSpec(name="code", task="kernels", params=params, isolation=isolation, deadline_s=90.0)
    )
    assert isinstance(verifier, CompiledCodeVerifier)
    return verifier


def fenced(source: str) -> str:
    return f"```cuda\n{source}\n```"


@pytest.mark.skipif(bool(gpus.devices()), reason="needs a machine without a GPU")
def test_programs_for_a_gpu_are_refused_where_there_is_none() -> None:
    for start in (made(**TINY).open, lambda: made(**TINY).open_stage("run")):
        with pytest.raises(BadVerifier, match="gpu: this host has no GPU"):
            start()


def test_programs_for_a_gpu_are_refused_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read /proc, which is that of the host otherwise."""
    try:
        detect(Isolation.LANDLOCK.value)
    except NoSandbox as problem:
        pytest.skip(str(problem))
    monkeypatch.setattr(gpus, "devices", lambda: ["/dev/zero"])
    with pytest.raises(SandboxFailed, match="only the isolation `namespaces` gives"):
        made(Isolation.LANDLOCK.value, **TINY).open_stage("run")


@on_a_gpu
def test_kernel_runs_on_the_gpu_inside_the_sandbox() -> None:
    verifier = made(**LANGUAGE)
    wrong = ADD.replace("a[i] + a[i]", "a[i] - a[i]")
    try:
        found = verifier.score_all([(SUMS, fenced(one)) for one in (ADD, wrong, "int main( {")])
    finally:
        verifier.close()
    assert [one.score for one in found] == [1.0, 0.0, 0.0]
    assert [one.status for one in found] == ["ok", "ok", "compile_failed"]


@on_a_gpu
def test_kernel_is_compiled_by_one_worker_and_run_by_another() -> None:
    """The first one opens no GPU, and the second one needs no compiler."""
    compiles, runs = made(**LANGUAGE), made(**LANGUAGE)
    try:
        compiles.open_stage("compile")
        assert not compiles.devices
        carried = compiles.score_stage("compile", SUMS, fenced(ADD), Carried(), None)
        assert isinstance(carried, Carried)
        runs.open_stage("run")
        found = runs.score_stage("run", SUMS, fenced(ADD), carried, None)
    finally:
        compiles.close()
        runs.close()
    assert isinstance(found, Judgement)
    assert (found.score, found.status) == (1.0, "ok")
