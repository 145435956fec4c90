// Opening and reading a thousand token files (runtime/files/token_file.h): of 10 million tokens in
// all, written out, and of 10 million each, with holes for tokens where the disk allows it. What is
// read is in the page cache.
//
//     bench_data [FOLDER, of the system for temporary files]
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/batches.h"
#include "runtime/files/permutation.h"
#include "runtime/files/token_file.h"
#include "schema/base/disk.h"
#include "tests/data_bytes.h"

namespace pp {
namespace {

constexpr int kFiles = 1000;
constexpr int kLength = 1024;
constexpr int64_t kMostSequences = 200000;

double Seconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Every fifth token counts as no target.
std::string Small(int number) {
  std::vector<uint32_t> tokens;
  std::vector<bool> counting;
  for (int i = 0; i < 10000; ++i) {
    tokens.push_back((i * 7 + number) % 50000);
    counting.push_back(i % 5 != 0);
  }
  return TokenFileBytes(tokens, 2, {0}, counting);
}

// All sections are holes but the start of the only document, 0, the bit of token 1, and the counts.
void WriteLarge(const std::string& path) {
  constexpr int64_t kTokens = 10000000;
  TokenFileBytes header({}, 2, {});
  header.tokens = kTokens;
  header.documents = 1;
  header.flags = kHasTargetBits;
  header.counted = 1;
  const int64_t starts = 64 + 2 * kTokens, bits = starts + 8,
                counts = bits + (kTokens + 63) / 64 * 8;
  std::vector<uint64_t> before((kTokens + kTokensPerCount - 1) / kTokensPerCount, 1);
  before[0] = 0;
  std::ofstream out(path, std::ios::binary);
  out << std::string(header);
  out.seekp(bits).put(2);
  out.seekp(counts) << Bytes(before);
}

void Measure(const char* what, const std::vector<std::string>& paths) {
  const Dataset::Options options{.vocab_size = 50257, .sequence_length = kLength};
  const int64_t before = ResidentBytes();
  std::unique_ptr<Dataset> data;
  const auto open = [&] {
    Result<Dataset> opened = Dataset::Open(paths, options);
    if (!opened.ok()) fmt::print("{}\n", opened.status().message());
    PP_CHECK(opened.ok());
    data = std::make_unique<Dataset>(std::move(*opened));
  };
  const double first = Seconds(open);
  const int64_t after = ResidentBytes();
  const double again = Seconds([&] {
    data.reset();
    open();
  });
  fmt::print("{}: {} files, {} tokens\n", what, paths.size(), data->tokens());
  fmt::print("  open     {:.3f} s, again {:.3f} s, and {:.1f} MB of resident memory\n", first,
             again, static_cast<double>(after - before) / 1e6);
  const double digest = Seconds([&] { PP_CHECK(data->Digest().ok()); });
  fmt::print("  digest   {:.3f} s\n", digest);
  std::vector<int32_t> inputs(kLength), targets(kLength);
  const int64_t count = std::min(kMostSequences, data->sequences());
  const Permutation order(1, 0, data->sequences());
  for (const bool shuffled : {false, true}) {
    const double seconds = Seconds([&] {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t n = shuffled ? order.At(i) : i;
        PP_CHECK(data->Inputs(n, inputs).ok() && data->Targets(n, targets).ok());
      }
    });
    const double bytes = 2.0 * 2 * kLength * static_cast<double>(count);
    fmt::print("  {} {:.0f} sequences/s of {} tokens, {:.2f} GB/s of the files\n",
               shuffled ? "shuffled" : "in order", static_cast<double>(count) / seconds, kLength,
               bytes / seconds / 1e9);
  }
  constexpr int64_t kSteps = 20;
  const Batches batches(
      {.dataset = data.get(), .microbatches = 512, .sequence_length = kLength, .shuffle = 1});
  const double counting = Seconds([&] {
    for (int64_t step = 1; step <= kSteps; ++step) PP_CHECK(batches.Tokens(step).ok());
  });
  fmt::print("  counting the targets of 512 shuffled sequences: {:.0f} us\n",
             counting / kSteps * 1e6);
}

void Main(const std::string& root) {
  std::string pattern = root + "/bench_data.XXXXXX";
  PP_CHECK(mkdtemp(pattern.data()) != nullptr);
  const std::filesystem::path folder = pattern;
  std::vector<std::string> small, large;
  for (int i = 0; i < kFiles; ++i) {
    small.push_back(folder / fmt::format("small{}", i));
    std::ofstream(small.back(), std::ios::binary) << Small(i);
    large.push_back(folder / fmt::format("large{}", i));
    WriteLarge(large.back());
  }
  Measure("10 million tokens", small);
  Measure("10 million tokens each, holes", large);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  pp::AllowManyFiles();
  pp::Main(argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string());
}
