// The project's own file of tokens, which tools/tokens writes: it says what else training wants to
// know of them. Little-endian; every section begins at a multiple of 8 bytes, and gaps are zeros.
//
//   offset  size
//   0       8     magic "PPTOKENS"
//   8       4     u32 version: 1
//   12      4     u32 bytes of a token: 2 or 4, unsigned
//   16      8     u64 N: tokens
//   24      8     u64 D: documents
//   32      8     u64 P: tokens of a row, where every P tokens are one example and N is a multiple
//                 of P; else 0
//   40      4     u32 the largest token; 0 where N is 0
//   44      4     u32 flags: bit 0: there are target bits; others 0
//   48      8     u64 C: how many tokens count as targets; N without target bits
//   56      8     0
//   64            tokens, N times 2 or 4 bytes
//                 document starts, D u64: the position of each document's first token, ascending,
//                 the first one 0
//                 with bit 0: target bits, ceil(N / 64) u64: bit i % 64 of word i / 64 is 1 where
//                 token i counts when it is a target; bits from N on are 0
//                 with bit 0: counts, ceil(N / 4096) u64: number k is how many of the tokens before
//                 token 4096 k count
//
// The file ends there: its size follows from its header. Opening verifies all of it but the tokens,
// each of which is verified whenever it is read. The counts stay in memory, 8 bytes for 4096
// tokens.
#pragma once

#include <cstdint>

namespace pp {

struct TokenFileHeader {
  char magic[8];
  uint32_t version, token_bytes;
  uint64_t tokens, documents, row;
  uint32_t largest, flags;
  uint64_t counted, zero;
};
static_assert(sizeof(TokenFileHeader) == 64);

inline constexpr char kTokenFileMagic[] = "PPTOKENS";
inline constexpr uint32_t kTokenFileVersion = 1;
inline constexpr uint32_t kHasTargetBits = 1;  // of the flags
inline constexpr int64_t kTokensPerCount = 4096;

// Where its sections begin, in bytes, and where it ends.
struct TokenFileSections {
  explicit TokenFileSections(const TokenFileHeader& header);
  // Wide enough for any header.
  unsigned __int128 tokens, starts, bits, counts, end;
};

}  // namespace pp
