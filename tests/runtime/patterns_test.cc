// Which files a name or a pattern stands for.
#include "runtime/files/patterns.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/folder.h"

namespace pp {
namespace {

// What patterns in the folder stand for there; an error as one name that begins with "!".
std::vector<std::string> Expand(const Folder& folder, const std::vector<std::string>& names) {
  std::vector<std::string> patterns, found;
  for (const std::string& name : names) patterns.push_back(folder / name);
  const auto expanded = ExpandPatterns(patterns);
  if (!expanded.ok()) found.push_back("!" + expanded.status().message());
  if (expanded.ok()) found = *expanded;
  const std::string prefix = folder / "";
  for (std::string& name : found)
    if (const size_t at = name.find(prefix); at != name.npos) name.erase(at, prefix.size());
  return found;
}

using Names = std::vector<std::string>;

TEST_CASE("a pattern stands for the files that it matches, sorted") {
  const Folder folder;
  for (const char* name : {"c2.bin", "c10.bin", "c1.bin", "b1.bin", "c1.txt"})
    std::ofstream(folder / name) << name;
  CHECK(Expand(folder, {"c*.bin"}) == Names{"c1.bin", "c10.bin", "c2.bin"});
  CHECK(Expand(folder, {"c?.bin"}) == Names{"c1.bin", "c2.bin"});
  CHECK(Expand(folder, {"[bd]1.bin"}) == Names{"b1.bin"});
  CHECK(Expand(folder, {"c?.bin", "c1.txt", "c1.*"}) ==
        Names{"c1.bin", "c2.bin", "c1.txt", "c1.bin", "c1.txt"});
}

TEST_CASE("a pattern that matches nothing is an error, a name that is not there is kept") {
  const Folder folder;
  CHECK(Expand(folder, {"none", "c*.bin"}) ==
        Names{"!c*.bin: matches no file (the name of a file, or a pattern that matches some)"});
  CHECK(Expand(folder, {"none"}) == Names{"none"});
}

TEST_CASE("the name of a file that is there is no pattern") {
  const Folder folder;
  for (const char* name : {"x[1].bin", "x1.bin", "y*.idx", "y1"}) std::ofstream(folder / name) << 1;
  CHECK(Expand(folder, {"x[1].bin"}) == Names{"x[1].bin"});
  CHECK(Expand(folder, {"y*"}) == Names{"y*"});  // the prefix of a Megatron dataset
}

TEST_CASE("a Megatron dataset of which both files match is taken once") {
  const Folder folder;
  for (const char* name : {"x1.bin", "x1.idx", "x2.idx", "x3.bin"})
    std::ofstream(folder / name) << 1;
  CHECK(Expand(folder, {"x*"}) == Names{"x1.bin", "x2.idx", "x3.bin"});
  CHECK(Expand(folder, {"*.idx"}) == Names{"x1.idx", "x2.idx"});
}

}  // namespace
}  // namespace pp
