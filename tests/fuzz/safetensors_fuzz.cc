// Weights in safetensors: whatever the bytes, opening them gives an error or tensors that lie back
// to back, fill the file, and can be read.
#include <cstring>
#include <string>
#include <vector>

#include "runtime/files/safetensors.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

std::string Sealed(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

// A right one.
std::string AnyInput(pp::Random& random) {
  constexpr const char* kTypes[] = {"F32", "I32", "F64", "U8", "BF16"};
  constexpr int kBytes[] = {4, 4, 8, 1, 2};
  std::string header = "{";
  int end = 0;
  for (int i = 0, count = random.Below(5); i < count; ++i) {
    const int type = random.Below(5), rows = random.Below(4), cols = 1 + random.Below(4);
    const int begin = end;
    end += rows * cols * kBytes[type];
    header += std::string(i > 0 ? "," : "") + "\"t" + std::to_string(i) + "\":{\"dtype\":\"" +
              kTypes[type] + "\",\"shape\":[" + std::to_string(rows) + "," + std::to_string(cols) +
              "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  return Sealed(header + "}", std::string(end, 'x'));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const pp::MemoryFile memory(pp::NewFolder(), "model.safetensors");
  memory.Fill({reinterpret_cast<const char*>(data), size});
  auto file = pp::Safetensors::Open(memory.path());
  if (!file.ok()) return 0;
  int64_t bytes = 0;
  for (const auto& [name, entry] : file->entries()) {
    PP_CHECK(file->Find(name) == &entry);
    PP_CHECK(entry.begin >= 0 && entry.end >= entry.begin);
    bytes += entry.end - entry.begin;
  }
  PP_CHECK(bytes <= static_cast<int64_t>(size));
  for (const auto& [name, entry] : file->entries()) {
    std::vector<float> floats((entry.end - entry.begin) / 4 + 1);
    std::vector<int32_t> ints(floats.size());
    PP_CHECK(file->ReadFloats(name, entry.shape, floats.data()).ok() == (entry.dtype == "F32"));
    PP_CHECK(file->ReadInts(name, entry.shape, ints.data()).ok() == (entry.dtype == "I32"));
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (size > 8 && random.OneIn(3)) return LLVMFuzzerMutate(data, size, max_size);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size <= 8 || random.OneIn(8)) bytes = AnyInput(random);
  // A changed header whose length is still right.
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length <= bytes.size() - 8 && !random.OneIn(4)) {
    std::string header = bytes.substr(8, length);
    const std::string rest = bytes.substr(8 + length);
    if (!header.empty()) {
      constexpr char kLetters[] = "0123456789-.eE\"\\[]{},:nulFI32x \n\x80\xff";
      const size_t at = random.Below(header.size());
      if (random.OneIn(3)) {
        header.erase(at, 1 + random.Below(4));
      } else {
        header.insert(at, 1, kLetters[random.Below(sizeof kLetters - 1)]);
      }
    }
    bytes = Sealed(header, rest);
  }
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}
