#include "runtime/files/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace pp {
namespace {

constexpr int64_t kPiece = 64 << 10;
constexpr int64_t kPieces = 4096;

}  // namespace

Result<uint64_t> Digest(const InputFile& file) {
  const int64_t size = file.bytes();
  const int64_t pieces = std::min((size + kPiece - 1) / kPiece, kPieces);
  // Piece i of a large file ends at the file's last byte if i is the last.
  const auto begin_of = [&](int64_t i) {
    if (size <= kPieces * kPiece) return i * kPiece;
    return static_cast<int64_t>(static_cast<__int128>(size - kPiece) * i / (kPieces - 1));
  };
  std::vector<char> bytes(kPiece);
  uint64_t digest = size;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = begin_of(i), count = std::min(kPiece, size - begin);
    PP_RETURN_IF_ERROR(file.Read(begin, bytes.data(), count));
    digest = XXH3_64bits_withSeed(bytes.data(), count, digest);
  }
  return digest;
}

}  // namespace pp
