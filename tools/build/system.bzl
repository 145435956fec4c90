"""Finds what a machine may or may not have: an MPI, a CUDA toolkit.

@mpi//:defs.bzl:  HAVE_MPI, MPI_COPTS, MPI_LINKOPTS
@cuda//:defs.bzl: HAVE_CUDA, CUDA_HOME, HAVE_NCCL, HAVE_CUPTI
@cuda//:headers:  CUDA's own, CUPTI's among them, and NCCL's

Where one is missing its HAVE_ is False, and the targets that need it are left out.
"""

def _mpi_impl(repository_ctx):
    mpicc = repository_ctx.which("mpicc.mpich") or repository_ctx.which("mpicc")

    # "mpicc -show" prints the compiler line that the wrapper would run.
    shown = repository_ctx.execute([mpicc, "-show"]) if mpicc else None
    flags = shown.stdout.strip().split(" ") if shown and shown.return_code == 0 else []
    repository_ctx.file("defs.bzl", "HAVE_MPI = %r\nMPI_COPTS = %r\nMPI_LINKOPTS = %r\n" % (
        bool(flags),
        ["-isystem" + flag[2:] for flag in flags if flag.startswith("-I")],
        [flag for flag in flags if flag.startswith("-L") or flag.startswith("-l")],
    ))
    repository_ctx.file("BUILD.bazel")

mpi = repository_rule(
    implementation = _mpi_impl,
    configure = True,
    local = True,
    environ = ["PATH"],
)

def _cuda_impl(repository_ctx):
    homes = [repository_ctx.os.environ.get("CUDA_HOME")]
    nvcc = repository_ctx.which("nvcc")
    if nvcc:
        homes.append(str(nvcc.realpath.dirname.dirname))
    homes.append("/usr/local/cuda")
    found = [home for home in homes if home and repository_ctx.path(home + "/bin/nvcc").exists]
    nccl = [
        folder
        for folder in ([found[0] + "/include"] if found else []) + ["/usr/include"]
        if repository_ctx.path(folder + "/nccl.h").exists
    ]
    cupti = [home for home in found[:1] if repository_ctx.path(home + "/include/cupti.h").exists]
    repository_ctx.file("defs.bzl", """
HAVE_CUDA = %r
CUDA_HOME = %r
HAVE_NCCL = %r
HAVE_CUPTI = %r
""" % (bool(found), found[0] if found else "", bool(found and nccl), bool(cupti)))
    if found:
        repository_ctx.symlink(found[0] + "/include", "include")
    repository_ctx.file("BUILD.bazel", """
cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

cuda_toolkit = repository_rule(
    implementation = _cuda_impl,
    configure = True,
    local = True,
    environ = ["PATH", "CUDA_HOME"],
)
