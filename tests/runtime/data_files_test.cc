// Several files as one stream of tokens.
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/files/dataset.h"
#include "runtime/files/digest.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"

namespace pp {
namespace {

std::string Write(const Folder& folder, const std::string& name, const std::string& bytes) {
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return folder / name;
}

std::vector<int32_t> AnyTokens(int count, int from) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((from + i * i) % 120);
  return tokens;
}

template <typename T>
std::vector<T> As(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

// A Megatron dataset of one sequence.
std::string WriteMegatron(const Folder& folder, const std::string& name,
                          const std::vector<int32_t>& tokens) {
  Write(folder, name + ".bin", Bytes(As<int64_t>(tokens)));
  Write(folder, name + ".idx",
        MegatronIndex{.type = 5,
                      .sequences = 1,
                      .documents = 1,
                      .lengths = Bytes<int32_t>({static_cast<int32_t>(tokens.size())}),
                      .starts = Bytes<int64_t>({0}),
                      .ends = Bytes<int64_t>({0})});
  return folder / name;
}

// What opening says, without the folder.
std::string Error(const Folder& folder, const std::vector<std::string>& names, int vocab_size = 256,
                  int length = 4) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(folder / name);
  const auto data = Dataset::Open(paths, {vocab_size, length});
  if (data.ok()) return "";
  CHECK(data.status().code() == Code::kInvalid);
  std::string message = data.status().message();
  const std::string prefix = folder / "";
  for (size_t at; (at = message.find(prefix)) != std::string::npos;)
    message.erase(at, prefix.size());
  return message;
}

// Every sequence against the tokens in one list, the plain way.
void CheckAll(const Dataset& data, const std::vector<int32_t>& tokens, int length) {
  const auto count = static_cast<int64_t>(tokens.size());
  REQUIRE(data.tokens() == count);
  REQUIRE(data.sequences() == (count - 1 + length - 1) / length);
  std::vector<int32_t> inputs(length), targets(length), read(count);
  REQUIRE(data.Read(0, count, read.data()).ok());
  CHECK(read == tokens);
  for (int64_t n = 0; n < data.sequences(); ++n) {
    REQUIRE(data.Inputs(n, inputs).ok());
    REQUIRE(data.Targets(n, targets).ok());
    for (int i = 0; i < length; ++i) {
      const int64_t at = n * length + i;
      REQUIRE(inputs[i] == (at + 1 < count ? tokens[at] : 0));
      REQUIRE(targets[i] == (at + 1 < count ? tokens[at + 1] : -1));
    }
  }
}

TEST_CASE("files are one stream of tokens, whatever their formats, and sequences cross borders") {
  const Folder folder;
  int number = 0;
  for (const std::vector<int>& sizes :
       std::vector<std::vector<int>>{{2, 3}, {1, 1, 1}, {7, 0, 5, 1}, {40, 3, 0, 0, 30}, {3000, 5}})
    for (const int length : {1, 2, 4, 5, 16, 1030}) {
      std::vector<std::string> paths;
      std::vector<int32_t> all;
      for (const int size : sizes) {
        const std::vector<int32_t> tokens = AnyTokens(size, number);
        all.insert(all.end(), tokens.begin(), tokens.end());
        const std::string name = "x" + std::to_string(number);
        const int format = size == 0 ? 0 : number % 3;  // an empty .bin of Megatron is refused
        paths.push_back(format == 0   ? Write(folder, name, LlmC(As<uint16_t>(tokens)))
                        : format == 1 ? Write(folder, name, LlmC(As<uint32_t>(tokens)))
                                      : WriteMegatron(folder, name, tokens));
        ++number;
      }
      INFO(sizes.size() << " files, sequences of " << length);
      const auto data = Dataset::Open(paths, {256, length});
      REQUIRE(data.ok());
      CHECK(!data->is_text());
      CheckAll(*data, all, length);
    }
}

TEST_CASE("texts go with texts, in their order, and a file may be there twice") {
  const Folder folder;
  const std::string a = Write(folder, "a", "abc"), b = Write(folder, "b", "de");
  const auto data = Dataset::Open({b, a, b}, {256, 3});
  REQUIRE(data.ok());
  CHECK(data->is_text());
  CheckAll(*data, {'d', 'e', 'a', 'b', 'c', 'd', 'e'}, 3);
}

TEST_CASE("a text and a file of tokens are refused, and both are named") {
  const Folder folder;
  Write(folder, "a.txt", "abc");
  Write(folder, "b.bin", LlmC<uint16_t>({1, 2, 3}));
  CHECK(Error(folder, {"a.txt", "a.txt", "b.bin"}) ==
        "b.bin: is of tokens, and a.txt is a text (texts alone, or files of tokens)");
  CHECK(Error(folder, {"b.bin", "a.txt"}) ==
        "a.txt: is a text, and b.bin is of tokens (texts alone, or files of tokens)");
}

TEST_CASE("what is wrong with one of several files is said with its name and place") {
  const Folder folder;
  const std::string right =
      " (a text, a token file of tools/tokens, an llm.c .bin or a Megatron .bin/.idx is needed)";
  Write(folder, "a.txt", "abc");
  Write(folder, "b.txt", "de\xff");
  Write(folder, "empty", "");
  std::filesystem::create_directory(folder / "d");
  CHECK(Error(folder, {"a.txt", "b.txt"}, 255) ==
        "b.txt: token 255 at position 2 is not in the vocabulary (0 to 254)");
  CHECK(Error(folder, {"a.txt", "empty"}) == "empty: an empty file" + right);
  CHECK(Error(folder, {"a.txt", "d"}) == "d: is a directory" + right);
  CHECK(Error(folder, {"a.txt", "none"}) ==
        "none: cannot be read: No such file or directory" + right);
}

TEST_CASE("two tokens are needed in all, not in each") {
  const Folder folder;
  Write(folder, "0.bin", LlmC<uint16_t>({}));
  Write(folder, "1.bin", LlmC<uint16_t>({7}));
  const std::string right = " (at least 2: one, and the next one to predict)";
  CHECK(Error(folder, {"1.bin", "0.bin", "1.bin"}) == "");
  CHECK(Error(folder, {"0.bin", "1.bin"}) == "0.bin and 1 more: 1 token" + right);
  CHECK(Error(folder, {"0.bin", "0.bin", "0.bin"}) == "0.bin and 2 more: 0 tokens" + right);
}

TEST_CASE("another of the files that is cut short while it is read is an error") {
  const Folder folder;
  const std::string a = Write(folder, "a", std::string(100, 'x')),
                    b = Write(folder, "b", std::string(100, 'y'));
  const auto data = Dataset::Open({a, b}, {256, 10});
  REQUIRE(data.ok());
  std::filesystem::resize_file(b, 50);
  int32_t out[10];
  CHECK(data->Inputs(14, out).ok());
  const Status status = data->Targets(14, out);
  CHECK(status.code() == Code::kFailed);
  CHECK(status.message() == b + ": cut short while it is read: byte 50 of 100 is missing");
}

TEST_CASE("a file that another one replaces is read on as it was") {
  const Folder folder;
  const std::string a = Write(folder, "a", "abcdef");
  const auto data = Dataset::Open({a}, {256, 5});
  REQUIRE(data.ok());
  std::filesystem::remove(a);
  Write(folder, "a", "other data");
  CheckAll(*data, {'a', 'b', 'c', 'd', 'e', 'f'}, 5);
}

TEST_CASE("more files than a process may open are an error that says so") {
  const Folder folder;
  const std::string a = Write(folder, "a", "abcdef");
  CHECK(Dataset::Open(std::vector<std::string>(200, a), {256, 5}).ok());
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit few{220, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const bool two = Dataset::Open({a, a}, {256, 5}).ok();
  const auto data = Dataset::Open(std::vector<std::string>(200, a), {256, 5});
  setrlimit(RLIMIT_NOFILE, &limit);
  CHECK(two);
  CHECK(data.status().code() == Code::kFailed);
  // 200, 64 for what comes later, and those that are open.
  const std::string message = data.status().message();
  const std::string begin =
      a + " and 199 more: are 200 files, and this process may open 220 (ulimit -n ";
  REQUIRE(message.starts_with(begin));
  const int needed = std::stoi(message.substr(begin.size()));
  CHECK((needed >= 200 + 64 + 3 && needed < 200 + 64 + 30));
}

uint64_t DigestOf(const std::vector<std::string>& paths) {
  const auto data = Dataset::Open(paths, {256, 4});
  REQUIRE(data.ok());
  const Result<uint64_t> digest = data->Digest();
  REQUIRE(digest.ok());
  return *digest;
}

// The numbers are in checkpoints: they are those of the first piperun that wrote them.
TEST_CASE("one file has the digest that checkpoints have") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 150000; ++i) text += static_cast<char>(1 + int64_t{i} * i % 250);
  CHECK(DigestOf({Write(folder, "small", text)}) == 7925058864832708995u);
  // Of more than 256 MiB, a part.
  const std::string big = Write(folder, "big", "");
  std::filesystem::resize_file(big, (300 << 20) - 1);
  std::ofstream(big, std::ios::binary | std::ios::app) << 'x';
  const auto file = InputFile::Open(big, "");
  REQUIRE(file.ok());
  const InputFile* files[] = {&*file};
  CHECK(*Digest(*file) == 9928422858515617197u);
  CHECK(*Digest(files) == 9928422858515617197u);
}

TEST_CASE("the digest of several files tells order, cuts and every byte of small ones") {
  const Folder folder;
  std::string text(150000, 'x');
  const std::string a = Write(folder, "a", text), b = Write(folder, "b", "yyy"),
                    c = Write(folder, "c", text + "y"), d = Write(folder, "d", "yy");
  const uint64_t both = DigestOf({a, b});
  CHECK(DigestOf({a, b}) == both);
  CHECK(DigestOf({b, a}) != both);
  CHECK(DigestOf({a}) != both);
  CHECK(DigestOf({a, b, b}) != both);
  CHECK(DigestOf({c, d}) != both);  // the same bytes, cut at another place
  for (const size_t at : {0, 70000, 149999}) {
    text[at] = 'z';
    Write(folder, "a", text);
    CHECK(DigestOf({a, b}) != both);
    text[at] = 'x';
  }
}

TEST_CASE("the digest of much data has a share of each file, with its beginning and its end") {
  const Folder folder;
  const std::string big = Write(folder, "big", ""), small = Write(folder, "small", "");
  const auto digest = [&] {
    const auto one = InputFile::Open(big, ""), other = InputFile::Open(small, "");
    REQUIRE((one.ok() && other.ok()));
    const InputFile* files[] = {&*one, &*other};
    return *Digest(files);
  };
  std::filesystem::resize_file(big, 300 << 20);
  std::filesystem::resize_file(small, 200000);
  const uint64_t zeros = digest();
  const auto put = [&](const std::string& path, int64_t at, char byte) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put(byte);
  };
  for (const auto& [path, at] :
       {std::pair{big, int64_t{0}}, {big, (300 << 20) - 1}, {small, 0}, {small, 199999}}) {
    INFO(path << " " << at);
    put(path, at, 'x');
    CHECK(digest() != zeros);
    put(path, at, 0);
  }
  CHECK(digest() == zeros);
}

}  // namespace
}  // namespace pp
