"""cuda_library: kernels in .cu files, compiled by nvcc, as a library for C++ targets.

Such a target exists under --config=cuda alone. Without it `bazel build //...` passes
over the target; with it, but without a toolkit, the build says what is missing.
"""

load("@cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")

# What a target needs that exists under --config=cuda alone.
CUDA_ONLY = select({
    "//:cuda": [],
    "//conditions:default": ["//tools/build:needs_config_cuda"],
})

# Code for A100 and H100/H200, and PTX for what comes after them.
_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra",
    "--compiler-bindir=g++",
    "-I.",
]

def _nvcc_objects_impl(ctx):
    if not HAVE_CUDA:
        fail("--config=cuda: no CUDA toolkit found (set CUDA_HOME, or put nvcc on the PATH, " +
             "or install it in /usr/local/cuda)")
    headers = depset(ctx.files.hdrs, transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ])
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file("_%s/%s.pic.o" % (ctx.label.name, source.basename))
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = _NVCC_FLAGS + ["-c", source.path, "-o", object.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [object],
            mnemonic = "Nvcc",
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], visibility = None):
    """A cc_library of .cu files; its users also link the CUDA runtime.

    Args:
      name: the target.
      srcs: .cu files.
      hdrs: headers that they and their users include.
      deps: C++ libraries whose headers they include.
      visibility: as everywhere.
    """
    _nvcc_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        target_compatible_with = CUDA_ONLY,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        deps = deps,
        linkopts = ["-L%s/lib64" % CUDA_HOME, "-lcudart_static", "-ldl", "-lpthread", "-lrt"],
        target_compatible_with = CUDA_ONLY,
        visibility = visibility,
    )
