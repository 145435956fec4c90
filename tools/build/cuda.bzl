"""cuda_library: kernels in .cu files, compiled by nvcc, as a library for C++ targets.

Such a target exists under --config=cuda alone. Without it `bazel build //...` passes
over the target; with it, but without a toolkit, the build says what is missing.

NAME_listings is what nvcc made on the way, NAME.ptx and NAME.ptxas, which says what
registers and memory each kernel takes: for tests (tools/cuda_proofs), wherever there
is a toolkit. Without one it is an empty file, no_nvcc.
"""

load("@cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")

# The constraint of targets that exist only under --config=cuda.
CUDA_ONLY = select({
    "//:cuda": [],
    "//conditions:default": ["//tools/build:needs_config_cuda"],
})

# Code for A100, for H100 and H200 with wgmma (sm_90a), and PTX for later GPUs, without it.
_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_90,code=compute_90",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra",
    "--compiler-bindir=g++",
    "-I.",
]

# nvcc's own files go into a folder; there is one .ptx for each -gencode.
_COMPILE = """
set -euo pipefail
nvcc=$1 source=$2 object=$3 ptx=$4 ptxas=$5
shift 5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$nvcc" "$@" -Xptxas -v --keep --keep-dir "$folder" -c "$source" -o "$object" &> "$ptxas" ||
  { cat "$ptxas" >&2; exit 1; }
cat "$folder"/*.ptx > "$ptx"
"""

def _nvcc_objects_impl(ctx):
    if not HAVE_CUDA:
        if ctx.attr.demanded:
            fail("--config=cuda: no CUDA toolkit found (set CUDA_HOME, or put nvcc on the PATH, " +
                 "or install it in /usr/local/cuda)")
        nothing = ctx.actions.declare_file("_%s/no_nvcc" % ctx.label.name)
        ctx.actions.write(nothing, "")

        # Bazel wants an object for the library, which is ignored.
        no_object = ctx.actions.declare_file("_%s/no_nvcc.pic.o" % ctx.label.name)
        ctx.actions.write(no_object, "")
        return [
            DefaultInfo(files = depset([no_object])),
            OutputGroupInfo(listings = depset([nothing])),
        ]
    headers = depset(ctx.files.hdrs, transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ])
    objects, listings = [], []
    for source in ctx.files.srcs:
        name = "_%s/%s" % (ctx.label.name, source.basename[:-len(".cu")])
        object = ctx.actions.declare_file(name + ".cu.pic.o")
        ptx = ctx.actions.declare_file(name + ".ptx")
        ptxas = ctx.actions.declare_file(name + ".ptxas")
        files = [source, object, ptx, ptxas]
        ctx.actions.run_shell(
            command = _COMPILE,
            arguments = [CUDA_HOME + "/bin/nvcc"] + [file.path for file in files] + _NVCC_FLAGS,
            inputs = depset([source], transitive = [headers]),
            outputs = [object, ptx, ptxas],
            mnemonic = "Nvcc",
            use_default_shell_env = True,
        )
        objects.append(object)
        listings += [ptx, ptxas]
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(listings = depset(listings)),
    ]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "demanded": attr.bool(),
    },
)

def cuda_listings(name, srcs, hdrs = [], deps = [], visibility = None):
    """NAME_objects, and NAME: the listings of .cu files.

    Args:
      name: the target.
      srcs: .cu files.
      hdrs: headers that they include.
      deps: C++ libraries whose headers they include.
      visibility: as everywhere.
    """
    _nvcc_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        demanded = select({
            "//:cuda": True,
            "//conditions:default": False,
        }),
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    native.filegroup(
        name = name,
        srcs = [name + "_objects"],
        output_group = "listings",
        visibility = visibility,
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
    cuda_listings(
        name = name + "_listings",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [name + "_listings_objects"],
        hdrs = hdrs,
        deps = deps,
        linkopts = ["-L%s/lib64" % CUDA_HOME, "-lcudart_static", "-ldl", "-lpthread", "-lrt"],
        target_compatible_with = CUDA_ONLY,
        visibility = visibility,
        alwayslink = True,  # wherever it is among libraries that do not name it
    )
