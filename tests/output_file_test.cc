// A file that a run writes, and one that it cannot write.
#include "runtime/files/output_file.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace pp {
namespace {

std::string ContentOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string FreshPath() {
  return (std::filesystem::temp_directory_path() /
          ("output_file_test." + std::to_string(getpid()) + ".txt"))
      .string();
}

}  // namespace

TEST_CASE("what is written is there at once, and behind what was written before") {
  const std::string path = FreshPath();
  std::ofstream(path) << "what was there";
  {
    auto file = OutputFile::Open(path);
    REQUIRE(file.ok());
    CHECK(file->path() == path);
    CHECK(ContentOf(path).empty());  // emptied
    CHECK(file->Write("one\n").ok());
    CHECK(ContentOf(path) == "one\n");
    CHECK(file->Write("").ok());
    OutputFile moved = std::move(*file);
    CHECK(moved.Write(std::string(100000, 'x')).ok());
  }
  CHECK(ContentOf(path) == "one\n" + std::string(100000, 'x'));
  std::filesystem::remove(path);
}

TEST_CASE("a path that cannot be written is known at once") {
  const Status folder = OutputFile::Open("/").status();
  CHECK(folder.code() == Code::kInvalid);
  CHECK(folder.message() == "/: cannot be written: Is a directory");
  CHECK(OutputFile::Open("/nowhere/a").status().message() ==
        "/nowhere/a: cannot be written: No such file or directory");
}

TEST_CASE("a full disk is a failure, with the file's name") {
  auto full = OutputFile::Open("/dev/full");
  if (!full.ok()) return;  // a system without one
  const Status status = full->Write("x");
  CHECK(status.code() == Code::kFailed);
  CHECK(status.message() == "/dev/full: cannot be written: No space left on device");
}

}  // namespace pp
