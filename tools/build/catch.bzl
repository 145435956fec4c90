"""catch_test: a test in Catch2, tests/FOLDER/NAME.cc unless it says which `srcs`."""

def catch_test(name, deps, srcs = None, size = "small", **kwargs):
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs or native.glob(["*/%s.cc" % name]),
        copts = ["-O1"],  # Catch's macros take a third less to compile
        deps = deps + ["//tools/build:catch2"],
        **kwargs
    )
