// Token files (runtime/files/token_file.h): whatever the bytes, opening them gives an error or
// sequences whose tokens are in the vocabulary and at most what the header says, whose targets are
// their inputs, shifted by one, or do not count, and as many of which count as is said.
//
// An input is | options, 1 byte | file |.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/files/dataset.h"
#include "runtime/files/token_file.h"
#include "tests/data_bytes.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr int kVocabularies[] = {1, 100, 256, 50257, 70000};
constexpr int kLengths[] = {1, 7, 64, 1500};

// Returns how many of its targets count, or -1 if it cannot be read.
int64_t CheckSequence(const pp::Dataset& data, const pp::Dataset::Options& options, int64_t n) {
  std::vector<int32_t> inputs(options.sequence_length), targets(options.sequence_length);
  if (!data.Inputs(n, inputs).ok() || !data.Targets(n, targets).ok()) return -1;
  int64_t counted = 0;
  for (int i = 0; i < options.sequence_length; ++i) {
    PP_CHECK(inputs[i] >= 0 && inputs[i] < options.vocab_size);
    PP_CHECK(targets[i] >= -1 && targets[i] < options.vocab_size);
    PP_CHECK(i == 0 || targets[i - 1] < 0 || i >= data.Positions(n, 1) ||
             inputs[i] == targets[i - 1]);
    PP_CHECK(i < data.Positions(n, 1) || (inputs[i] == 0 && targets[i] == -1));
    counted += targets[i] >= 0 ? 1 : 0;
  }
  const pp::Result<int64_t> told = data.Counted(n);
  PP_CHECK(!told.ok() || *told == counted);
  return counted;
}

// All that an open file can be asked.
void CheckAll(const pp::Dataset& data, const pp::Dataset::Options& options) {
  PP_CHECK(data.sequences() >= 1 && data.Digest().ok());
  PP_CHECK(data.row() == 0 || data.tokens() % data.row() == 0);
  int64_t counted = 0;
  for (int64_t n = 0; n < data.sequences() && counted >= 0; ++n) {
    const int64_t one = CheckSequence(data, options, n);
    counted = one < 0 ? -1 : counted + one;
  }
  const pp::Result<int64_t> told = data.Counted(0, data.sequences());
  PP_CHECK(told.ok() && *told > 0);
  PP_CHECK(counted < 0 || counted == *told);
}

// A right one.
pp::TokenFileBytes AnyFile(pp::Random& random) {
  const int count = random.OneIn(8) ? random.Below(1500) : random.Below(140);
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> begins;
  std::vector<bool> counting;
  const bool has_bits = !random.OneIn(4);
  for (int i = 0; i < count; ++i) {
    tokens.push_back(random.Below(100));
    if (i == 0 || random.OneIn(30)) begins.push_back(i);
    if (has_bits) counting.push_back(random.OneIn(2));
  }
  pp::TokenFileBytes file(tokens, random.OneIn(2) ? 2 : 4, begins, counting);
  if (count > 0 && random.OneIn(4)) file.row = random.OneIn(2) ? count : 1;
  return file;
}

// One thing of it is wrong, as a rule; its size is mostly that of its header.
void Damage(pp::Random& random, pp::TokenFileBytes* file) {
  const uint64_t numbers[] = {0, 1, 2, 63, 64, 65, 4096, 70000, uint64_t{1} << 31, ~uint64_t{}};
  const uint64_t number = numbers[random.Below(10)];
  uint64_t* const fields[] = {&file->tokens, &file->documents, &file->row, &file->counted,
                              &file->zero};
  uint32_t* const halves[] = {&file->version, &file->token_bytes, &file->largest, &file->flags};
  std::string* const sections[] = {&file->numbers, &file->gap, &file->starts, &file->bits,
                                   &file->counts};
  switch (random.Below(4)) {
    case 0: {
      uint64_t& field = *fields[random.Below(5)];
      field = random.OneIn(2) ? number : field + (random.OneIn(2) ? 1 : -1);
      break;
    }
    case 1: {
      uint32_t& half = *halves[random.Below(4)];
      half = static_cast<uint32_t>(random.OneIn(2) ? number : half + (random.OneIn(2) ? 1 : -1));
      break;
    }
    case 2: {
      std::string& section = *sections[random.Below(5)];
      if (!section.empty())
        section[random.Below(section.size())] ^= static_cast<char>(1 << random.Below(8));
      break;
    }
    default: {
      std::string& section = *sections[random.Below(5)];
      section.resize(section.size() + 8 * random.Below(3));
      if (section.size() >= 8 && random.OneIn(2)) section.resize(section.size() - 8);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = pp::NewFolder();
  static const pp::MemoryFile file(folder, "x");
  if (size < 9 || std::memcmp(data + 1, pp::kTokenFileMagic, 8) != 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  file.Fill(bytes);
  const pp::Dataset::Options options{.vocab_size = kVocabularies[data[0] % 5],
                                     .sequence_length = kLengths[data[0] / 5 % 4],
                                     .documents = data[0] / 20 % 2 == 1};
  const auto dataset = pp::Dataset::Open({file.path()}, options);
  if (!dataset.ok()) {
    PP_CHECK(dataset.status().message().find(file.path()) == 0);
    return 0;
  }
  CheckAll(*dataset, options);
  // As the second of two, and truncated.
  const auto both = pp::Dataset::Open({file.path(), file.path()}, options);
  PP_CHECK(both.ok());
  CheckAll(*both, options);
  file.Fill(bytes.substr(0, bytes.size() / 2));
  CheckSequence(*both, options, both->sequences() - 1);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (size > 9 && random.OneIn(2)) {  // mostly leaves the magic alone
    const size_t begin = random.OneIn(16) ? 0 : 9;
    return begin + LLVMFuzzerMutate(data + begin, size - begin, max_size - begin);
  }
  pp::TokenFileBytes file = AnyFile(random);
  while (!random.OneIn(3)) Damage(random, &file);
  const std::string input = std::string(1, static_cast<char>(random.Below(256))) +
                            std::string(file).substr(0, max_size - 1);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
