// Where packed documents begin, from each source of that: positions, targets and how many of them
// count, against a loop that is as plain as can be; and what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "runtime/files/batches.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"

namespace pp {
namespace {

constexpr int kLength = 8;
constexpr uint32_t kEnd = 7;  // the end-of-text token

std::string Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// A file's tokens, documents and targets, in no format yet.
struct Content {
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> begins;
  std::vector<bool> counts;
};

// Documents of 1 to 20 tokens, and one of 100, each with kEnd at its end and nowhere else.
Content ContentOf(int documents, std::mt19937* engine) {
  Content content;
  for (int d = 0; d < documents; ++d) {
    content.begins.push_back(content.tokens.size());
    const auto length = d == 2 ? 100 : 1 + (*engine)() % 20;
    for (size_t i = 0; i + 1 < length; ++i) content.tokens.push_back(10 + (*engine)() % 50);
    content.tokens.push_back(kEnd);
  }
  for (size_t i = 0; i < content.tokens.size(); ++i) content.counts.push_back((*engine)() % 4 != 0);
  return content;
}

// As files in each format, whose names it returns.
using Format = std::vector<std::string> (*)(const std::string& path, const Content& content);

std::vector<std::string> AsTokenFile(const std::string& path, const Content& content) {
  return {Write(path, TokenFileBytes(content.tokens, 2, content.begins))};
}

std::vector<std::string> WithTargetBits(const std::string& path, const Content& content) {
  return {Write(path, TokenFileBytes(content.tokens, 4, content.begins, content.counts))};
}

// Each document has two sequences, where it has two tokens, and there is an empty one.
std::vector<std::string> AsMegatron(const std::string& path, const Content& content) {
  std::vector<int32_t> lengths;
  std::vector<int64_t> starts, entries;
  const auto add = [&](uint64_t begin, uint64_t end) {
    lengths.push_back(static_cast<int32_t>(end - begin));
    starts.push_back(static_cast<int64_t>(2 * begin));
  };
  for (size_t d = 0; d < content.begins.size(); ++d) {
    const uint64_t begin = content.begins[d];
    const bool last = d + 1 == content.begins.size();
    const uint64_t end = last ? content.tokens.size() : content.begins[d + 1];
    entries.push_back(std::ssize(lengths));
    if (d == 1) entries.push_back(std::ssize(lengths));
    if (end - begin > 1) add(begin, begin + 1);
    add(end - begin > 1 ? begin + 1 : begin, end);
  }
  entries.push_back(std::ssize(lengths));
  std::vector<uint16_t> tokens(content.tokens.begin(), content.tokens.end());
  Write(path + ".bin", Bytes(tokens));
  Write(path + ".idx", MegatronIndex{.sequences = lengths.size(),
                                     .documents = entries.size(),
                                     .lengths = Bytes(lengths),
                                     .starts = Bytes(starts),
                                     .ends = Bytes(entries)});
  return {path};
}

std::vector<std::string> AsLlmC(const std::string& path, const Content& content) {
  return {Write(path, LlmC(std::vector<uint16_t>(content.tokens.begin(), content.tokens.end())))};
}

std::vector<std::string> AsText(const std::string& path, const Content& content) {
  return {Write(path, std::string(content.tokens.begin(), content.tokens.end()))};
}

struct Source {
  const char* name;
  Format format;
  bool by_end = false, has_bits = false;
};
const Source kSources[] = {{"token file", AsTokenFile},
                           {"token file with target bits", WithTargetBits, false, true},
                           {"token file by its end tokens", WithTargetBits, true, true},
                           {"Megatron", AsMegatron},
                           {"llm.c", AsLlmC, true},
                           {"text", AsText, true}};

// Several files of a source, and what they have together.
struct Data {
  Data(const Source& source, int files) {
    std::mt19937 engine(files);
    std::vector<std::string> paths;
    for (int i = 0; i < files; ++i) {
      const Content content = ContentOf(5 + 3 * i, &engine);
      for (const uint64_t begin : content.begins) begins.insert(all.size() + begin);
      all.insert(all.end(), content.tokens.begin(), content.tokens.end());
      for (const bool one : content.counts) counts.push_back(one || !source.has_bits);
      for (const auto& path : source.format(folder / std::to_string(i), content))
        paths.push_back(path);
    }
    Dataset::Options options{.vocab_size = 256, .sequence_length = kLength, .documents = true};
    if (source.by_end) options.end_of_text = kEnd;
    auto opened = Dataset::Open(paths, options);
    INFO(opened.status().message());
    REQUIRE(opened.ok());
    dataset = std::make_unique<Dataset>(std::move(*opened));
  }

  // Of input i of sequence n.
  int Position(int64_t n, int i) const {
    const auto at = static_cast<uint64_t>(n * kLength + i);
    return i == 0 || begins.contains(at) ? 0 : Position(n, i - 1) + 1;
  }
  int32_t Target(int64_t n, int i) const {
    const auto at = static_cast<uint64_t>(n * kLength + i + 1);
    if (at >= all.size() || !counts[at] || begins.contains(at)) return -1;
    return static_cast<int32_t>(all[at]);
  }

  Folder folder;
  std::vector<uint32_t> all;
  std::vector<bool> counts;
  std::set<uint64_t> begins;
  std::unique_ptr<Dataset> dataset;
};

std::string ErrorOf(const Folder& folder, const std::vector<std::string>& paths) {
  const auto data =
      Dataset::Open(paths, {.vocab_size = 256, .sequence_length = kLength, .documents = true});
  if (data.ok()) return "";
  CHECK(data.status().code() == Code::kInvalid);
  return data.status().message().substr((folder / "").size());
}

TEST_CASE("positions and targets of packed documents, from each source, in one file and several") {
  for (const Source& source : kSources)
    for (const int files : {1, 3}) {
      INFO(source.name << ", " << files << " files");
      const Data data(source, files);
      std::vector<int32_t> positions(kLength), targets(kLength);
      int64_t counted = 0;
      for (int64_t n = 0; n < data.dataset->sequences(); ++n) {
        REQUIRE(data.dataset->DocumentPositions(n, positions).ok());
        REQUIRE(data.dataset->Targets(n, targets).ok());
        int64_t count = 0;
        for (int i = 0; i < kLength; ++i) {
          if (n * kLength + i + 1 < std::ssize(data.all))
            REQUIRE(positions[i] == data.Position(n, i));
          REQUIRE(targets[i] == data.Target(n, i));
          count += targets[i] >= 0 ? 1 : 0;
        }
        REQUIRE(*data.dataset->Counted(n) == count);
        counted += count;
      }
      CHECK(*data.dataset->Counted(0, data.dataset->sequences()) == counted);
    }
}

// The last step of an epoch is filled with sequences that are not there.
TEST_CASE("batches of packed documents, in order and shuffled, past the end of an epoch") {
  const Data data(kSources[0], 3);
  for (const bool shuffled : {false, true}) {
    Batches::Args args{.dataset = data.dataset.get(),
                       .replicas = 2,
                       .microbatches = 3,
                       .micro_batch_size = 2,
                       .sequence_length = kLength,
                       .epochs = 2};
    if (shuffled) args.shuffle = 5;
    const Batches batches(args);
    CHECK(batches.has_documents());
    std::vector<int32_t> inputs(2 * kLength), positions(2 * kLength), targets(2 * kLength);
    for (int64_t step = 1; step <= batches.Steps(); ++step) {
      int64_t counted = 0;
      for (const int replica : {0, 1})
        for (const int micro : {0, 1, 2}) {
          REQUIRE(batches.Inputs(step, replica, micro, inputs.data()).ok());
          REQUIRE(batches.Targets(step, replica, micro, targets.data()).ok());
          REQUIRE(batches.DocumentPositions(step, replica, micro, positions.data()).ok());
          counted += std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
          // Of these documents kEnd is the last token: what follows begins one, and is no target.
          for (int i = 0; i < 2 * kLength; ++i) {
            const bool first = i % kLength == 0;
            const bool begins = first || inputs[i - 1] == static_cast<int>(kEnd);
            const bool there = inputs[i] != 0;
            if (there) REQUIRE(positions[i] == (begins ? 0 : positions[i - 1] + 1));
            if (inputs[i] == static_cast<int>(kEnd) || !there) REQUIRE(targets[i] == -1);
            REQUIRE(positions[i] < kLength);
          }
        }
      CHECK(*batches.Tokens(step) == counted);
    }
  }
}

TEST_CASE("data that does not say where its documents begin is refused") {
  const Folder folder;
  const std::string right =
      ": does not say where its documents begin (--end-of-text ID, a token file of tools/tokens or "
      "a Megatron dataset)";
  const std::string text = Write(folder / "text", "a text");
  const std::string tokens = Write(folder / "tokens", LlmC<uint16_t>({1, 2, 3}));
  const std::string file = Write(folder / "file", TokenFileBytes({1, 2, 3}, 2, {0, 2}));
  CHECK(ErrorOf(folder, {text}) == "text" + right);
  CHECK(ErrorOf(folder, {tokens}) == "tokens" + right);
  CHECK(ErrorOf(folder, {file}) == "");
  CHECK(ErrorOf(folder, {file, tokens}) == "tokens" + right);
  CHECK(ErrorOf(folder, {Write(folder / "none", TokenFileBytes({1, 2, 3}, 2, {}))}) ==
        "none" + right);
  // Documents of one token have no target.
  CHECK(ErrorOf(folder, {Write(folder / "ones", TokenFileBytes({1, 2, 3}, 2, {0, 1, 2}))}) ==
        "ones: no token counts as a target (at least one)");
}

TEST_CASE("a Megatron index with damaged documents is refused where they are packed") {
  const Folder folder;
  Write(folder / "m.bin", Bytes<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const auto error = [&](const std::vector<int64_t>& entries) {
    Write(folder / "m.idx", MegatronIndex{.documents = entries.size(), .ends = Bytes(entries)});
    const auto plain = Dataset::Open({folder / "m"}, {256, kLength});
    CHECK(plain.ok());
    return ErrorOf(folder, {folder / "m"});
  };
  CHECK(error({0, 1, 2}) == "");
  CHECK(error({0, 1, 1, 2}) == "");
  CHECK(error({1, 1, 2}) ==
        "m.idx: damaged index: document 0 begins with sequence 1 (0 to 0 are possible)");
  CHECK(error({0, 2, 1, 2}) ==
        "m.idx: damaged index: document 2 begins with sequence 1 (2 to 2 are possible)");
  CHECK(error({0, 3, 2}) ==
        "m.idx: damaged index: document 1 begins with sequence 3 (0 to 2 are possible)");
  CHECK(error({0, 1}) ==
        "m.idx: damaged index: document 1 begins with sequence 1 (2 to 2 are possible)");
  CHECK_THAT(error({}), Catch::Contains("does not say where its documents begin"));
}

TEST_CASE("whoever packs documents compares what says where they begin") {
  const Folder folder;
  Write(folder / "m.bin", Bytes<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const auto digest = [&](const std::vector<int64_t>& entries, bool documents) {
    Write(folder / "m.idx", MegatronIndex{.documents = entries.size(), .ends = Bytes(entries)});
    return *Dataset::Open({folder / "m"}, {256, kLength, documents})->Digest();
  };
  CHECK(digest({0, 1, 2}, true) != digest({0, 2, 2}, true));
  CHECK(digest({0, 1, 2}, false) == digest({0, 2, 2}, false));
}

}  // namespace
}  // namespace pp
