// The token file of tools/tokens: what is read of it, and the text of every error.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "runtime/files/dataset.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"

namespace pp {
namespace {

using Tokens = std::vector<uint32_t>;

std::string Write(const Folder& folder, const std::string& name, const std::string& bytes) {
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return folder / name;
}

// What opening says of a file, "x" in it.
std::string Error(const std::string& bytes, int vocab_size = 256) {
  const Folder folder;
  const auto data = Dataset::Open({Write(folder, "x", bytes)}, {vocab_size, 4});
  if (data.ok()) return "";
  CHECK(data.status().code() == Code::kInvalid);
  return data.status().message().substr((folder / "").size());
}

// Ten tokens in two documents, of which three do not count.
TokenFileBytes Ten(int bytes = 2) {
  return {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3},
          bytes,
          {0, 6},
          {false, true, true, false, true, true, false, true, true, true}};
}

// A right one of any number of tokens.
struct Any {
  Tokens tokens;
  std::vector<bool> counting;  // all, where there are no target bits
  TokenFileBytes bytes{{}, 2, {}};
};

Any AnyFile(int count, int token_bytes, bool has_bits, std::mt19937& engine) {
  Any any;
  for (int i = 0; i < count; ++i) {
    any.tokens.push_back(engine() % 100);
    // Long stretches, as of prompts, and single ones.
    any.counting.push_back(!has_bits || (i / 700 % 3 != 1 && engine() % 4 != 0));
  }
  std::vector<uint64_t> begins;
  if (count > 0) begins.push_back(0);
  any.bytes = {any.tokens, token_bytes, begins, has_bits ? any.counting : std::vector<bool>()};
  return any;
}

// Every sequence, the plain way.
void CheckAll(const Dataset& data, const Tokens& tokens, const std::vector<bool>& counting,
              int length) {
  const auto all = static_cast<int64_t>(tokens.size());
  REQUIRE(data.tokens() == all);
  std::vector<int32_t> inputs(length), targets(length);
  std::vector<int64_t> before = {0}, positions = {0};  // of all sequences before one
  for (int64_t n = 0; n < data.sequences(); ++n) {
    REQUIRE(data.Inputs(n, inputs).ok());
    REQUIRE(data.Targets(n, targets).ok());
    int64_t counted = 0, there = 0;
    for (int i = 0; i < length; ++i) {
      const int64_t at = n * length + i;
      const bool is_there = at + 1 < all;
      REQUIRE(inputs[i] == (is_there ? static_cast<int32_t>(tokens[at]) : 0));
      REQUIRE(targets[i] ==
              (is_there && counting[at + 1] ? static_cast<int32_t>(tokens[at + 1]) : -1));
      counted += is_there && counting[at + 1] ? 1 : 0;
      there += is_there ? 1 : 0;
    }
    REQUIRE(*data.Counted(n) == counted);
    REQUIRE(data.Positions(n, 1) == there);
    before.push_back(before.back() + counted);
    positions.push_back(positions.back() + there);
  }
  for (int64_t n = 0; n < data.sequences(); n += 1 + data.sequences() / 7) {
    const int64_t count = data.sequences() - n;
    CHECK(*data.Counted(n, count) == before.back() - before[n]);
    CHECK(*data.Counted(0, n) == before[n]);
    CHECK(data.Positions(n, count) == positions.back() - positions[n]);
  }
}

TEST_CASE("its tokens, and -1 for the targets that do not count") {
  const Folder folder;
  for (const int bytes : {2, 4}) {
    const auto data = Dataset::Open({Write(folder, "x", Ten(bytes))}, {256, 4});
    REQUIRE(data.ok());
    CHECK(data->has_uncounted_targets());
    CHECK(data->row() == 0);
    CHECK(!data->is_text());
    std::vector<int32_t> inputs(4), targets(4);
    CHECK(data->Inputs(1, inputs).ok());
    CHECK(data->Targets(1, targets).ok());
    CHECK(inputs == std::vector<int32_t>{5, 9, 2, 6});
    CHECK(targets == std::vector<int32_t>{9, -1, 6, 5});
    CHECK(*data->Counted(0) == 3);
    CHECK(*data->Counted(1) == 3);
    CHECK(*data->Counted(2) == 1);
  }
}

TEST_CASE("files of any size, alone and several, with and without target bits") {
  const Folder folder;
  std::mt19937 engine(1);
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{2},
                                                                     {63},
                                                                     {64, 1},
                                                                     {65, 0, 129},
                                                                     {4095},
                                                                     {4096},
                                                                     {4097, 3},
                                                                     {8192},
                                                                     {10, 8193},
                                                                     {9000, 4096, 700},
                                                                     {20000}})
    for (const int length : {1, 3, 64, 1000, 5000}) {
      std::vector<std::string> paths;
      Tokens tokens;
      std::vector<bool> counting;
      for (const int size : sizes) {
        const Any any = AnyFile(size, engine() % 2 == 0 ? 2 : 4, engine() % 4 != 0, engine);
        tokens.insert(tokens.end(), any.tokens.begin(), any.tokens.end());
        counting.insert(counting.end(), any.counting.begin(), any.counting.end());
        paths.push_back(Write(folder, "x" + std::to_string(paths.size()), any.bytes));
      }
      INFO(sizes.size() << " files, the first of " << sizes[0] << ", sequences of " << length);
      if (std::find(counting.begin() + 1, counting.end(), true) == counting.end()) continue;
      const auto data = Dataset::Open(paths, {256, length});
      REQUIRE(data.ok());
      CheckAll(*data, tokens, counting, length);
    }
}

TEST_CASE("it goes with the other formats of tokens") {
  const Folder folder;
  const std::string x = Write(folder, "x", Ten()),
                    y = Write(folder, "y", LlmC<uint16_t>({7, 8, 9}));
  const auto data = Dataset::Open({y, x, y}, {256, 5});
  REQUIRE(data.ok());
  CheckAll(*data, {7, 8, 9, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 7, 8, 9},
           {true, true, true, false, true, true, false, true, true, false, true, true, true, true,
            true, true},
           5);
}

TEST_CASE("rows are told, and are the same in all files") {
  const Folder folder;
  TokenFileBytes five = Ten(), two = Ten();
  five.row = 5;
  two.row = 2;
  const std::string a = Write(folder, "a", five), b = Write(folder, "b", two),
                    c = Write(folder, "c", Ten()), d = Write(folder, "d", LlmC<uint16_t>({1, 2}));
  const auto error = [&](const std::vector<std::string>& paths) {
    return Dataset::Open(paths, {256, 5}).status().message();
  };
  const auto data = Dataset::Open({a, a}, {256, 5});
  REQUIRE(data.ok());
  CHECK(data->row() == 5);
  CHECK(data->sequences() == 4);
  CHECK(error({a, a, b}) ==
        b + ": has rows of 2 tokens, and " + a + " has rows of 5 tokens (the same in all files)");
  CHECK(error({a, c}) ==
        c + ": has no rows, and " + a + " has rows of 5 tokens (the same in all files)");
  CHECK(error({d, a}) ==
        a + ": has rows of 5 tokens, and " + d + " has no rows (the same in all files)");
}

// One field or byte after the other.
TEST_CASE("a damaged header is refused by its field") {
  const auto error = [](auto change, int bytes = 2) {
    TokenFileBytes file = Ten(bytes);
    change(file);
    return Error(file);
  };
  using File = TokenFileBytes;
  CHECK(Error(Ten()) == "");
  CHECK(Error(std::string(Ten()).substr(0, 63)) ==
        "x: truncated: 63 bytes (the header alone has 64)");
  CHECK(error([](File& f) { f.version = 2; }) == "x: a token file of version 2 (1 is read)");
  CHECK(error([](File& f) { f.token_bytes = 3; }) == "x: damaged: 3 bytes of a token (2 or 4)");
  CHECK(error([](File& f) { f.flags = 3; }) == "x: damaged: flags 3 (0 or 1)");
  CHECK(error([](File& f) { f.zero = 1; }) ==
        "x: damaged: 1 at byte 56 of its header (0 is needed)");
  CHECK(error([](File& f) { f.tokens = uint64_t{1} << 63; }) ==
        "x: damaged: 9223372036854775808 tokens and 2 documents do not fit its 120 bytes");
  CHECK(error([](File& f) { f.documents = ~uint64_t{}; }) ==
        "x: damaged: 10 tokens and 18446744073709551615 documents do not fit its 120 bytes");
  CHECK(
      error([](File& f) { f.tokens = 20; }) ==
      "x: truncated: 120 bytes (136 by its header: 20 tokens of 2 bytes, 2 documents, with target "
      "bits)");
  CHECK(error([](File& f) { f.documents = 1; }) ==
        "x: damaged: 120 bytes (112 by its header: 10 tokens of 2 bytes, 1 documents, with target "
        "bits)");
  CHECK(error([](File& f) { f.flags = 0; }) ==
        "x: damaged: 120 bytes (104 by its header: 10 tokens of 2 bytes, 2 documents, no target "
        "bits)");
  CHECK(Error(std::string(Ten()) + '\0') ==
        "x: damaged: 121 bytes (120 by its header: 10 tokens of 2 bytes, 2 documents, with target "
        "bits)");
  CHECK(error([](File& f) { f.row = 3; }) ==
        "x: damaged: 10 tokens (a multiple of 3, its row, is needed)");
  CHECK(error([](File& f) { f.largest = 65536; }) ==
        "x: damaged: largest token 65536 (at most 65535 in 2 bytes)");
  CHECK(error([](File& f) { f.largest = 256; }) ==
        "x: token 256, its largest, is not in the vocabulary (0 to 255)");
  CHECK(error([](File& f) { f.largest = 4294967295; }, 4) ==
        "x: token 4294967295, its largest, is not in the vocabulary (0 to 255)");
  CHECK(error([](File& f) { f.counted = 11; }) ==
        "x: damaged: 11 tokens count as targets (at most 10, all its tokens)");
  CHECK(error([](File& f) { f.counted = 8; }) ==
        "x: damaged: 8 tokens count as targets by its header (7 by its target bits)");
  TokenFileBytes all({1, 2, 3}, 4, {0});
  CHECK(Error(all) == "");
  all.counted = 2;
  CHECK(Error(all) == "x: damaged: 2 tokens count as targets (3, all its tokens)");
  TokenFileBytes none({}, 2, {});
  CHECK(Error(none) == "x: 0 tokens (at least 2: one, and the next one to predict)");
  none.largest = 1;
  CHECK(Error(none) == "x: damaged: largest token 1 of none (0)");
}

TEST_CASE("a damaged section is refused by its name") {
  const auto error = [](auto change) {
    TokenFileBytes file = Ten();
    change(file);
    return Error(file);
  };
  using File = TokenFileBytes;
  CHECK(error([](File& f) { f.gap[3] = 1; }) ==
        "x: damaged: byte 87, between tokens and document starts, is 1 (0 is needed)");
  CHECK(error([](File& f) {
          f.starts = Bytes<uint64_t>({1, 6});
        }) == "x: damaged: its first document begins at token 1 (0 is needed)");
  CHECK(error([](File& f) {
          f.starts = Bytes<uint64_t>({0, 10});
        }) == "x: damaged: document 1, counted from 0, begins at token 10 (1 to 9 are possible)");
  CHECK(error([](File& f) {
          f.starts = Bytes<uint64_t>({0, 0});
        }) == "x: damaged: document 1, counted from 0, begins at token 0 (1 to 9 are possible)");
  CHECK(error([](File& f) { f.bits[1] ^= 4; }) ==
        "x: damaged: target bits of tokens after its last one, 9 (they are 0)");
  CHECK(error([](File& f) { f.bits[0] ^= 1; }) ==
        "x: damaged: 7 tokens count as targets by its header (8 by its target bits)");
  CHECK(error([](File& f) { f.counts[0] = 1; }) ==
        "x: damaged: count 0, counted from 0, is 1 (its target bits make 0)");
  CHECK(error([](File& f) { f.numbers[4] = 10; }) == "");  // it is found when it is read
}

TEST_CASE("each bit and each count of a long file is verified") {
  std::mt19937 engine(2);
  // Longer than what is verified at a time.
  const Any any = AnyFile((int64_t{64} << 16) + 5000, 2, true, engine);
  CHECK(Error(any.bytes) == "");
  for (const size_t at : {size_t{0}, any.bytes.bits.size() / 2, any.bytes.bits.size() - 8}) {
    TokenFileBytes damaged = any.bytes;
    damaged.bits[at] ^= 1;
    INFO("byte " << at << " of its target bits");
    CHECK_THAT(Error(damaged), Catch::StartsWith("x: damaged: "));
  }
  for (const size_t at : {size_t{0}, any.bytes.counts.size() / 2, any.bytes.counts.size() - 8}) {
    TokenFileBytes damaged = any.bytes;
    damaged.counts[at] ^= 1;
    CHECK_THAT(Error(damaged), Catch::StartsWith("x: damaged: count " + std::to_string(at / 8)));
  }
}

TEST_CASE("each of many document starts is verified") {
  std::vector<uint64_t> begins;
  for (uint64_t i = 0; i < 70000; ++i) begins.push_back(i);
  const TokenFileBytes right(Tokens(70000, 1), 2, begins);
  CHECK(Error(right) == "");
  for (const size_t at : {1, 65535, 65536, 69999}) {
    TokenFileBytes damaged = right;
    damaged.starts[8 * at] ^= 1;
    CHECK_THAT(Error(damaged), Catch::StartsWith("x: damaged: document "));
  }
}

TEST_CASE("a token that is larger than the header says is damage, when it is read") {
  const Folder folder;
  TokenFileBytes file = Ten();
  file.numbers[8] = 10;  // token 4
  const std::string path = Write(folder, "x", file);
  const auto data = Dataset::Open({path}, {256, 4});
  REQUIRE(data.ok());
  int32_t out[4];
  CHECK(data->Inputs(0, out).ok());
  CHECK(data->Targets(0, out).message() ==
        path + ": damaged: token 10 at position 4 (at most 9 by its header)");
}

TEST_CASE("data without any target that counts is refused") {
  CHECK(Error(TokenFileBytes({1, 2, 3}, 2, {0}, {true, false, false})) ==
        "x: no token counts as a target (at least one)");
}

TEST_CASE("a file that is cut short is an error of its tokens, its bits and its count") {
  const Folder folder;
  std::mt19937 engine(3);
  const Any any = AnyFile(5000, 2, true, engine);
  const std::string path = Write(folder, "x", any.bytes);
  const auto data = Dataset::Open({path}, {256, 10});
  REQUIRE(data.ok());
  std::vector<int32_t> out(10);
  const int64_t tokens_end = 64 + 2 * 5000;
  std::filesystem::resize_file(path, tokens_end + 8);
  CHECK(data->Inputs(400, out).ok());
  for (const Status& status : {data->Targets(400, out), data->Counted(400).status()}) {
    CHECK(status.code() == Code::kFailed);
    CHECK_THAT(status.message(), Catch::StartsWith(path + ": cut short while it is read: byte "));
  }
  std::filesystem::resize_file(path, 64 + 2 * 1000);
  CHECK(data->Inputs(99, out).ok());
  CHECK(data->Inputs(100, out).code() == Code::kFailed);
}

}  // namespace
}  // namespace pp
