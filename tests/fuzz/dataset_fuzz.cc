// Data sets of all three formats: whatever the bytes, opening them gives an error or sequences
// whose tokens are in the vocabulary, and whose targets are their inputs, shifted by one, as far as
// the file goes; or packed documents, whose positions begin at 0 and go up by 1.
//
// An input is | options, 1 byte | bytes of the index, 2 | index | data |; without an index there is
// only the data.
#include <cstring>
#include <string>
#include <vector>

#include "runtime/files/dataset.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr int kVocabularies[] = {1, 128, 256, 50257, 70000};
constexpr int kLengths[] = {1, 4, 1500};

void CheckSequence(const pp::Dataset& data, const pp::Dataset::Options& options, int64_t n) {
  std::vector<int32_t> inputs(options.sequence_length), targets(options.sequence_length);
  const bool read = data.Inputs(n, inputs).ok();
  if (!read || !data.Targets(n, targets).ok()) return;
  std::vector<int32_t> positions(options.sequence_length);
  if (options.documents && !data.DocumentPositions(n, positions).ok()) return;
  for (int i = 0; i < options.sequence_length; ++i) {
    PP_CHECK(inputs[i] >= 0 && inputs[i] < options.vocab_size);
    PP_CHECK(positions[i] == 0 || (i > 0 && positions[i] == positions[i - 1] + 1));
    if (!options.documents)
      PP_CHECK(targets[i] >= 0 ? i == 0 || inputs[i] == targets[i - 1] : inputs[i] == 0);
  }
}

template <typename T>
void Append(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A right one.
std::string AnyInput(pp::Random& random) {
  std::string index, data;
  const int format = random.Below(3), tokens = 2 + random.Below(40);
  if (format == 1) {
    for (int i = 0; i < 256; ++i)
      Append<int32_t>(&data, i == 0 ? 20240520 : i == 1 ? 1 : i == 2 ? tokens : 0);
  }
  const int type = 1 + random.Below(5), bytes[] = {1, 1, 2, 4, 8};
  const int size = format == 0 ? 1 : format == 1 ? 2 : bytes[type - 1];
  for (int i = 0; i < tokens; ++i) {
    const int64_t token = 1 + random.Below(100);
    data.append(reinterpret_cast<const char*>(&token), size);
  }
  if (format == 2) {
    const int first = random.Below(tokens);
    index.append("MMIDIDX\0\0", 9);
    Append<uint64_t>(&index, 1);
    Append<uint8_t>(&index, type);
    Append<uint64_t>(&index, 2);
    Append<uint64_t>(&index, 3);
    Append<int32_t>(&index, first);
    Append<int32_t>(&index, tokens - first);
    for (const int64_t start : {0, first * size}) Append<int64_t>(&index, start);
    for (const int64_t end : {0, 1, 2}) Append<int64_t>(&index, end);
  }
  std::string input(1, static_cast<char>(random.Below(256)));
  Append<uint16_t>(&input, static_cast<uint16_t>(index.size()));
  return input + index + data;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = pp::NewFolder();
  static const pp::MemoryFile text(folder, "text"), tokens(folder, "x.bin"), index(folder, "x.idx");
  if (size < 3) return 0;
  uint16_t index_bytes = 0;
  std::memcpy(&index_bytes, data + 1, 2);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 3, size - 3);
  const std::string_view first = rest.substr(0, index_bytes), second = rest.substr(first.size());
  const pp::MemoryFile& file = index_bytes == 0 ? text : tokens;
  file.Fill(second);
  index.Fill(first);
  pp::Dataset::Options options{.vocab_size = kVocabularies[data[0] % 5],
                               .sequence_length = kLengths[data[0] / 5 % 3],
                               .documents = data[0] / 15 % 3 > 0};
  if (data[0] / 15 % 3 == 2) options.end_of_text = 5;
  const auto dataset = pp::Dataset::Open({file.path()}, options);
  if (!dataset.ok()) return 0;
  PP_CHECK(dataset->sequences() >= 1);
  for (const int64_t n : {int64_t{0}, dataset->sequences() - 1, dataset->sequences(), int64_t{7}})
    CheckSequence(*dataset, options, n);
  PP_CHECK(dataset->Digest().ok());
  // And truncated.
  file.Fill(second.substr(0, second.size() / 2));
  CheckSequence(*dataset, options, dataset->sequences() - 1);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (size > 0 && !random.OneIn(8)) return LLVMFuzzerMutate(data, size, max_size);
  const std::string input = AnyInput(random);
  PP_CHECK(input.size() <= max_size);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
