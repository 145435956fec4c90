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

// A token file of tools/tokens (runtime/files/token_file.h), byte by byte, with its parts by name.
struct TokenFileBytes {
  std::string magic = "PPTOKENS";
  uint32_t version = 1, token_bytes = 2;
  uint64_t tokens = 0, documents = 0, row = 0;
  uint32_t largest = 0, flags = 0;
  uint64_t counted = 0, zero = 0;
  std::string numbers, gap, starts, bits, counts;

  // Right ones. `counts`: which tokens count as targets; none: no target bits.
  TokenFileBytes(const std::vector<uint32_t>& all, int bytes, const std::vector<uint64_t>& begins,
                 const std::vector<bool>& counting = {})
      : token_bytes(bytes), tokens(all.size()), documents(begins.size()), counted(all.size()) {
    for (const uint32_t token : all) {
      numbers += Bytes<uint32_t>({token}).substr(0, bytes);
      if (token > largest) largest = token;
    }
    gap.resize((8 - numbers.size() % 8) % 8);
    starts = Bytes(begins);
    if (counting.empty()) return;
    flags = 1;
    counted = 0;
    std::vector<uint64_t> words((all.size() + 63) / 64), before;
    for (uint64_t i = 0; i < all.size(); ++i) {
      if (i % 4096 == 0) before.push_back(counted);
      if (counting[i]) words[i / 64] |= uint64_t{1} << i % 64, ++counted;
    }
    bits = Bytes(words);
    counts = Bytes(before);
  }

  operator std::string() const {
    return magic + Bytes<uint32_t>({version, token_bytes}) +
           Bytes<uint64_t>({tokens, documents, row}) + Bytes<uint32_t>({largest, flags}) +
           Bytes<uint64_t>({counted, zero}) + numbers + gap + starts + bits + counts;
  }
};

}  // namespace pp
