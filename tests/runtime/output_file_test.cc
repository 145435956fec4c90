// A file that a run writes, and one that it cannot write.
#include "runtime/files/output_file.h"

#include <sys/stat.h>
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

TEST_CASE("what is written is there immediately, and after what was written before") {
  const std::string path = FreshPath();
  std::ofstream(path) << "what was there";
  {
    auto file = OutputFile::Open(path);
    REQUIRE(file.ok());
    CHECK(file->path() == path);
    CHECK(ContentOf(path) == "what was there");  // until the run begins
    CHECK(file->Begin().ok());
    CHECK(ContentOf(path).empty());
    CHECK(file->Write("one\n").ok());
    CHECK(ContentOf(path) == "one\n");
    CHECK(file->Write("").ok());
    OutputFile moved = std::move(*file);
    CHECK(moved.Write(std::string(100000, 'x')).ok());
    CHECK(moved.Close().ok());
  }
  CHECK(ContentOf(path) == "one\n" + std::string(100000, 'x'));
  std::filesystem::remove(path);
}

TEST_CASE("a run that never begins leaves nothing and takes nothing") {
  const std::string path = FreshPath();
  { REQUIRE(OutputFile::Open(path).ok()); }
  CHECK(!std::filesystem::exists(path));
  std::ofstream(path) << "kept";
  { REQUIRE(OutputFile::Open(path).ok()); }
  CHECK(ContentOf(path) == "kept");
  std::filesystem::remove(path);
}

TEST_CASE("a file belongs to one run, and is known under all its names") {
  const std::string path = FreshPath(), link = path + ".link", other = path + ".other";
  {
    auto file = OutputFile::Open(path);
    REQUIRE(file.ok());
    CHECK(OutputFile::Open(path).status().message() ==
          path + ": another run is writing it (another file)");
    std::filesystem::create_symlink(path, link);
    std::ofstream(other) << "x";
    CHECK(file->Is(path));
    CHECK(file->Is(link));
    CHECK(!file->Is(other));
    CHECK(!file->Is("/nowhere"));
  }
  CHECK(OutputFile::Open(link).ok());  // which leads nowhere now
  auto null = OutputFile::Open("/dev/null");
  REQUIRE(null.ok());
  CHECK(!null->Is("/dev/null"));
  CHECK(OutputFile::Open("/dev/null").ok());
  for (const std::string& name : {path, link, other}) std::filesystem::remove(name);
}

TEST_CASE("a pipe that nobody reads is refused, and does not wait") {
  const std::string path = FreshPath();
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(OutputFile::Open(path).status().message() ==
        path + ": cannot be written: No such device or address");
  std::filesystem::remove(path);
}

TEST_CASE("a path that cannot be written is known at once") {
  const Status folder = OutputFile::Open("/").status();
  CHECK(folder.code() == Code::kInvalid);
  CHECK(folder.message() == "/: cannot be written: Is a directory");
  const Status nowhere = OutputFile::Open("/proc/nowhere/a").status();
  CHECK(nowhere.code() == Code::kInvalid);
  CHECK(nowhere.message() == "/proc/nowhere: cannot be made: No such file or directory");
}

TEST_CASE("the folders of a file are made") {
  const std::string top = FreshPath(), path = top + "/one/two.txt";
  CHECK(OutputFile::Open(path).ok());
  CHECK(std::filesystem::is_directory(top + "/one"));
  CHECK_FALSE(std::filesystem::exists(path));  // it was not begun
  auto file = OutputFile::Open(path);
  REQUIRE(file.ok());
  CHECK(file->Begin().ok());
  CHECK(file->Write("x").ok());
  CHECK(file->Close().ok());
  CHECK(std::filesystem::file_size(path) == 1);
  std::filesystem::remove_all(top);
}

TEST_CASE("a full disk is a failure, with the file's name") {
  auto full = OutputFile::Open("/dev/full");
  if (!full.ok()) return;  // a system without one
  const Status status = full->Write("x");
  CHECK(status.code() == Code::kFailed);
  CHECK(status.message() == "/dev/full: cannot be written: No space left on device");
}

}  // namespace pp
