"""Finds what a machine may or may not have: a CUDA toolkit, an MPI."""

def _mpi_impl(repository_ctx):
    mpicc = repository_ctx.which("mpicxx.mpich") or repository_ctx.which("mpicxx")
    includes, links = [], []
    if mpicc:
        # "mpicxx -show" prints the compiler line that a wrapper would run.
        for flag in repository_ctx.execute([mpicc, "-show"]).stdout.split(" "):
            if flag.startswith("-I"):
                includes.append("-isystem" + flag[2:].strip())
            elif flag.startswith("-L") or flag.strip() == "-lmpich":
                links.append(flag.strip())
    repository_ctx.file("defs.bzl", "HAVE_MPI = %s\n" % bool(links))
    repository_ctx.file("BUILD.bazel", """
cc_library(name = "mpi", visibility = ["//visibility:public"])
""")
    repository_ctx.file("flags.bzl", "MPI_COPTS = %r\nMPI_LINKOPTS = %r\n" % (includes, links))

mpi = repository_rule(
    implementation = _mpi_impl,
    configure = True,
    local = True,
    environ = ["PATH"],
)

def _cuda_impl(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME")
    nvcc = repository_ctx.which("nvcc")
    if not home and nvcc:
        home = str(repository_ctx.path(nvcc).realpath.dirname.dirname)
    if not home and repository_ctx.path("/usr/local/cuda/bin/nvcc").exists:
        home = "/usr/local/cuda"
    repository_ctx.file("defs.bzl", "CUDA_HOME = %r\n" % (home or ""))
    repository_ctx.file("BUILD.bazel", "")

cuda_toolkit = repository_rule(
    implementation = _cuda_impl,
    configure = True,
    local = True,
    environ = ["PATH", "CUDA_HOME"],
)
