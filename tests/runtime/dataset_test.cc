// The three formats of a data file, and the text of every error.
#include "runtime/files/dataset.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/data_bytes.h"

namespace pp {
namespace {

// Files in a folder of their own; errors name them without the folder.
class Folder {
 public:
  Folder() {
    const std::filesystem::path root = std::filesystem::temp_directory_path();
    std::string name = (root / "dataset_test.XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

  // The message of the error from opening `name`, "" without one.
  std::string Error(const std::string& name, const Dataset::Options& options = {256, 4}) const {
    const Result<Dataset> dataset = Dataset::Open({*this / name}, options);
    if (dataset.ok()) return "";
    CHECK(dataset.status().code() == Code::kInvalid);
    const std::string folder = path_.string() + "/";
    std::string message = dataset.status().message();
    for (size_t at; (at = message.find(folder)) != std::string::npos;)
      message.erase(at, folder.size());
    return message;
  }

 private:
  std::filesystem::path path_;
};

std::vector<int32_t> Inputs(const Dataset& data, int64_t n, int length = 4) {
  std::vector<int32_t> out(length);
  CHECK(data.Inputs(n, out).ok());
  return out;
}

std::vector<int32_t> Targets(const Dataset& data, int64_t n, int length = 4) {
  std::vector<int32_t> out(length);
  CHECK(data.Targets(n, out).ok());
  return out;
}

using Tokens = std::vector<int32_t>;
constexpr const char* kNeeded =
    " (a text, a token file of tools/tokens, an llm.c .bin or a Megatron .bin/.idx is needed)";

TEST_CASE("the bytes of a text are its tokens, and sequences share their last token") {
  Folder folder;
  folder.Write("x.txt", "abcdefgh\xff");
  const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, 4});
  REQUIRE(data.ok());
  CHECK(data->tokens() == 9);
  CHECK(data->sequences() == 2);
  CHECK(Inputs(*data, 0) == Tokens{'a', 'b', 'c', 'd'});
  CHECK(Targets(*data, 0) == Tokens{'b', 'c', 'd', 'e'});
  CHECK(Inputs(*data, 1) == Tokens{'e', 'f', 'g', 'h'});
  CHECK(Targets(*data, 1) == Tokens{'f', 'g', 'h', 255});
}

TEST_CASE("the end of a file is a sequence that lacks targets, and then the file starts again") {
  Folder folder;
  folder.Write("x.txt", "abcdefghijkl");
  const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, 4});
  REQUIRE(data.ok());
  CHECK(data->sequences() == 3);
  CHECK(data->missing() == 1);
  CHECK(Inputs(*data, 2) == Tokens{'i', 'j', 'k', 0});
  CHECK(Targets(*data, 2) == Tokens{'j', 'k', 'l', -1});
  CHECK(Inputs(*data, 3) == Inputs(*data, 0));
  CHECK(Targets(*data, (int64_t{3} << 40) + 1) == Targets(*data, 1));
}

// Also where a sequence is longer than the blocks that are read at a time.
TEST_CASE("every token but the first is a target once, whatever the sequence length") {
  Folder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(1 + i * i % 250);
  for (const size_t size : {2, 3, 5, 16, 17, 18, 1025, 3000}) {
    folder.Write("x.txt", text.substr(0, size));
    for (const int length : {1, 2, 4, 15, 16, 17, 1024, 1500, 2999, 4000}) {
      INFO(size << " tokens, sequences of " << length);
      const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, length});
      REQUIRE(data.ok());
      int64_t ignored = 0;
      std::string inputs, targets;
      for (int64_t n = 0; n < data->sequences(); ++n) {
        const Tokens in = Inputs(*data, n, length), out = Targets(*data, n, length);
        for (int i = 0; i < length; ++i) {
          if (out[i] < 0) {
            CHECK((out[i] == -1 && in[i] == 0));
            ++ignored;
          } else {
            inputs += static_cast<char>(in[i]);
            targets += static_cast<char>(out[i]);
          }
        }
      }
      CHECK(inputs == text.substr(0, size - 1));
      CHECK(targets == text.substr(1, size - 1));
      CHECK(ignored == data->missing());
      CHECK(ignored < length);
    }
  }
}

TEST_CASE("an llm.c token file") {
  Folder folder;
  folder.Write("x.bin", LlmC<uint16_t>({50256, 1, 2, 3, 65535}));
  const Result<Dataset> data = Dataset::Open({folder / "x.bin"}, {65536, 4});
  REQUIRE(data.ok());
  CHECK(data->tokens() == 5);
  CHECK(Inputs(*data, 0) == Tokens{50256, 1, 2, 3});
  CHECK(Targets(*data, 0) == Tokens{1, 2, 3, 65535});
}

TEST_CASE("an llm.c token file with more than 65536 different tokens") {
  Folder folder;
  folder.Write("x.bin", LlmC<uint32_t>({128255, 1, 65536, 3, 128000}));
  const Result<Dataset> data = Dataset::Open({folder / "x.bin"}, {128256, 4});
  REQUIRE(data.ok());
  CHECK(data->tokens() == 5);
  CHECK(Inputs(*data, 0) == Tokens{128255, 1, 65536, 3});
  CHECK(Targets(*data, 0) == Tokens{1, 65536, 3, 128000});
  folder.Write("x.bin", LlmC<uint32_t>({1, 2, 3, 4294967295, 5}));
  CHECK(folder.Error("x.bin") ==
        "x.bin: token 4294967295 at position 3 is not in the vocabulary (0 to 255)");
  folder.Write("x.bin", LlmC<uint32_t>({1, 2, 3, 4, 5}).substr(0, 1034));
  CHECK(folder.Error("x.bin") == "x.bin: truncated: 1034 bytes (1044 by its header: 5 tokens)");
}

TEST_CASE("a Megatron dataset, by any of its three names") {
  Folder folder;
  folder.Write("x.bin", Bytes<uint16_t>({9, 8, 7, 6, 5, 4, 300}));
  folder.Write("x.idx", MegatronIndex());
  for (const char* name : {"x", "x.bin", "x.idx"}) {
    const Result<Dataset> data = Dataset::Open({folder / name}, {301, 3});
    REQUIRE(data.ok());
    CHECK(data->tokens() == 7);
    CHECK(Inputs(*data, 1, 3) == Tokens{6, 5, 4});
    CHECK(Targets(*data, 1, 3) == Tokens{5, 4, 300});
  }
}

TEST_CASE("a Megatron dataset of every integer type") {
  Folder folder;
  const auto check = [&](uint8_t type, int64_t size, const std::string& tokens) {
    folder.Write("x.bin", tokens);
    // With the optional array of modes, which nothing here needs.
    folder.Write("x.idx",
                 std::string(MegatronIndex{.type = type, .starts = Bytes<int64_t>({0, 4 * size})}) +
                     std::string(2, '\0'));
    const Result<Dataset> data = Dataset::Open({folder / "x"}, {1000, 6});
    REQUIRE(data.ok());
    CHECK(Inputs(*data, 0, 6) == Tokens{1, 2, 3, 4, 5, 6});
    CHECK(Targets(*data, 0, 6) == Tokens{2, 3, 4, 5, 6, 127});
  };
  check(1, 1, Bytes<uint8_t>({1, 2, 3, 4, 5, 6, 127}));
  check(2, 1, Bytes<int8_t>({1, 2, 3, 4, 5, 6, 127}));
  check(3, 2, Bytes<int16_t>({1, 2, 3, 4, 5, 6, 127}));
  check(4, 4, Bytes<int32_t>({1, 2, 3, 4, 5, 6, 127}));
  check(5, 8, Bytes<int64_t>({1, 2, 3, 4, 5, 6, 127}));
  check(8, 2, Bytes<uint16_t>({1, 2, 3, 4, 5, 6, 127}));
}

TEST_CASE("a path that leads to no data") {
  Folder folder;
  std::filesystem::create_directory(folder / "d");
  folder.Write("empty", "");
  CHECK(folder.Error("x.txt") ==
        std::string("x.txt: cannot be read: No such file or directory") + kNeeded);
  CHECK(folder.Error("d") == std::string("d: is a directory") + kNeeded);
  CHECK(folder.Error("empty") == std::string("empty: an empty file") + kNeeded);
}

TEST_CASE("a damaged token file") {
  Folder folder;
  const std::string whole = LlmC<uint16_t>({1, 2, 3, 4, 5, 6});
  folder.Write("x.bin", whole.substr(0, 1030));
  CHECK(folder.Error("x.bin") == "x.bin: truncated: 1030 bytes (1036 by its header: 6 tokens)");
  folder.Write("x.bin", whole + "y");
  CHECK(folder.Error("x.bin") == "x.bin: damaged: 1037 bytes (1036 by its header: 6 tokens)");
  folder.Write("x.bin", whole.substr(0, 100));
  CHECK(folder.Error("x.bin") == "x.bin: truncated: 100 bytes (the header alone has 1024)");
  folder.Write("x.bin", Bytes<int32_t>({20240520, 2, 6}) + whole.substr(12));
  CHECK(folder.Error("x.bin") == "x.bin: an llm.c token file of version 2 (1 is read)");
  folder.Write("x.bin", Bytes<int32_t>({20240520, 1, -6}) + whole.substr(12));
  CHECK(folder.Error("x.bin") == "x.bin: damaged: -6 tokens (a number from 0 is needed)");
}

TEST_CASE("a damaged Megatron index") {
  Folder folder;
  folder.Write("x.bin", Bytes<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const auto error = [&](const std::string& index) {
    folder.Write("x.idx", index);
    return folder.Error("x.idx");
  };
  CHECK(error("MMIDIDY") == "x.idx: damaged index: no MMIDIDX at its start");
  CHECK(error(std::string(MegatronIndex()).substr(0, 20)) ==
        "x.idx: damaged index: 20 bytes (the header alone has 34)");
  CHECK(error(MegatronIndex{.version = 3}) == "x.idx: damaged index: version 3 (1 is read)");
  for (int type : {0, 6, 7, 9, 255})
    CHECK(error(MegatronIndex{.type = static_cast<uint8_t>(type)}) ==
          "x.idx: damaged index: token type " + std::to_string(type) +
              " (integers are read: 1 to 5 and 8)");
  CHECK(error(MegatronIndex{.sequences = 3}) ==
        "x.idx: damaged index: 3 sequences and 3 document ends do not fit its 82 bytes");
  // 12 * 2^62 is 0 in 64 bits.
  CHECK(error(MegatronIndex{.sequences = uint64_t{1} << 62, .documents = 6}) ==
        "x.idx: damaged index: 4611686018427387904 sequences and 6 document ends do not fit its "
        "82 bytes");
  CHECK(error(MegatronIndex{.starts = Bytes<int64_t>({0, 6})}) ==
        "x.idx: damaged index: sequence 1 has 3 tokens from byte 6 (from byte 8, the end of its "
        "predecessor)");
  CHECK(error(MegatronIndex{.lengths = Bytes<int32_t>({-4, 3})}) ==
        "x.idx: damaged index: sequence 0 has -4 tokens from byte 0 (from byte 0, the end of its "
        "predecessor)");
  folder.Write("x.bin", "1234567890123");
  CHECK(error(MegatronIndex()) == "x.bin: 13 bytes (14 by x.idx)");
  std::filesystem::remove(folder / "x.bin");
  CHECK(error(MegatronIndex()) ==
        std::string("x.bin: cannot be read: No such file or directory") + kNeeded);
}

TEST_CASE("too few tokens for one target") {
  Folder folder;
  const std::string right = " (at least 2: one, and the next one to predict)";
  folder.Write("x.txt", "ab");
  CHECK(folder.Error("x.txt", {256, 4}) == "");
  folder.Write("x.txt", "a");
  CHECK(folder.Error("x.txt", {256, 4}) == "x.txt: 1 token" + right);
  folder.Write("x.bin", LlmC<uint16_t>({}));
  CHECK(folder.Error("x.bin", {256, 4}) == "x.bin: 0 tokens" + right);
}

TEST_CASE("a token that is not in the vocabulary") {
  Folder folder;
  folder.Write("x.txt", "abcde\xff");
  CHECK(folder.Error("x.txt", {256, 4}) == "");
  CHECK(folder.Error("x.txt", {255, 4}) ==
        "x.txt: token 255 at position 5 is not in the vocabulary (0 to 254)");
  folder.Write("x.bin", LlmC<uint16_t>({1, 2, 3, 4, 50257}));
  CHECK(folder.Error("x.bin", {50257, 4}) ==
        "x.bin: token 50257 at position 4 is not in the vocabulary (0 to 50256)");
  // A negative one, in a type whose every other value is legal.
  folder.Write("y.bin", Bytes<int8_t>({1, 2, 3, -4, 5, 6, 7}));
  folder.Write("y.idx", MegatronIndex{.type = 2, .starts = Bytes<int64_t>({0, 4})});
  CHECK(folder.Error("y", {1000, 4}) ==
        "y.bin: token -4 at position 3 is not in the vocabulary (0 to 999)");
}

TEST_CASE("a token beyond the vocabulary in a long file is found where it is") {
  Folder folder;
  std::string text(100000, 'x');
  text[98765] = 'z';
  folder.Write("x.txt", text);
  CHECK(folder.Error("x.txt", {'z', 4}) ==
        "x.txt: token 122 at position 98765 is not in the vocabulary (0 to 121)");
}

TEST_CASE("a token that turns bad after opening is refused before it is used") {
  Folder folder;
  folder.Write("x.txt", "abcdefghi");
  const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {128, 4});
  REQUIRE(data.ok());
  std::fstream(folder / "x.txt", std::ios::in | std::ios::out | std::ios::binary).seekp(4)
      << '\xee';
  int32_t out[4] = {};
  CHECK(data->Inputs(0, out).ok());
  CHECK(data->Targets(0, out).message() ==
        folder / "x.txt" + ": token 238 at position 4 is not in the vocabulary (0 to 127)");
}

// At one time only its first 4096 bytes were checked.
TEST_CASE("a 0 anywhere in a text is found, when it is opened or when it is read") {
  Folder folder;
  std::string text(200000, 'x');
  text[150000] = 0;
  folder.Write("x.txt", text);
  CHECK(folder.Error("x.txt") == std::string("x.txt: not a text: byte 150000 is 0") + kNeeded);
  text[150000] = 'x';
  folder.Write("x.txt", text);
  const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, 4});
  REQUIRE(data.ok());
  text[40] = 0;
  folder.Write("x.txt", text);
  int32_t out[4];
  CHECK(data->Inputs(9, out).ok());
  CHECK_THAT(data->Inputs(10, out).message(), Catch::Contains("x.txt: not a text: byte 40 is 0"));
}

TEST_CASE("a file that is cut short while it is read is an error") {
  Folder folder;
  folder.Write("x.txt", std::string(100000, 'x'));
  const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, 4});
  REQUIRE(data.ok());
  std::filesystem::resize_file(folder / "x.txt", 50000);
  int32_t out[4];
  CHECK(data->Inputs(12499, out).ok());
  const Status status = data->Targets(12499, out);
  CHECK(status.code() == Code::kFailed);
  CHECK_THAT(status.message(),
             Catch::Contains("x.txt: cut short while it is read: byte 50000 of 100000 is missing"));
}

TEST_CASE("a pipe is refused, and does not wait for a writer") {
  Folder folder;
  REQUIRE(mkfifo((folder / "x").c_str(), 0600) == 0);
  CHECK(folder.Error("x") == std::string("x: is not a regular file") + kNeeded);
}

TEST_CASE("two files have one digest where they have the same bytes") {
  Folder folder;
  const auto digest = [&](const std::string& text) {
    folder.Write("x.txt", text);
    const Result<Dataset> data = Dataset::Open({folder / "x.txt"}, {256, 4});
    REQUIRE(data.ok());
    const Result<uint64_t> digest = data->Digest();
    REQUIRE(digest.ok());
    return *digest;
  };
  std::string text(150000, 'x');
  const uint64_t one = digest(text);
  CHECK(digest(text) == one);
  CHECK(digest(text + 'x') != one);
  for (const size_t at : {0, 70000, 149999}) {
    text[at] = 'y';
    CHECK(digest(text) != one);
    text[at] = 'x';
  }
}

}  // namespace
}  // namespace pp
