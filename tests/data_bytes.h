// The bytes of data files (runtime/files/dataset.h) as tests want them, right or wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pp {

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Of llm.c: uint16_t tokens as of GPT-2, uint32_t ones as of LLaMA 3.
template <typename T>
std::string LlmC(const std::vector<T>& tokens) {
  const bool wide = sizeof(T) == 4;
  std::string header = Bytes<int32_t>(
      {wide ? 20240801 : 20240520, wide ? 7 : 1, static_cast<int32_t>(tokens.size())});
  header.resize(1024);
  return header + Bytes(tokens);
}

// Of two sequences of 4 and 3 uint16_t tokens.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t sequences = 2;
  uint64_t documents = 3;
  std::string lengths = Bytes<int32_t>({4, 3});
  std::string starts = Bytes<int64_t>({0, 8});
  std::string ends = Bytes<int64_t>({0, 1, 2});

  operator std::string() const {
    return magic + Bytes<uint64_t>({version}) + static_cast<char>(type) +
           Bytes<uint64_t>({sequences, documents}) + lengths + starts + ends;
  }
};

}  // namespace pp
