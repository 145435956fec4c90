#include "runtime/files/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace pp {
namespace {

constexpr int64_t kPiece = 64 << 10;
constexpr int64_t kPieces = 4096;

// `most`: how many pieces of it are read; at least 2.
Result<uint64_t> DigestPieces(const InputFile& file, int64_t most) {
  const int64_t size = file.bytes();
  const int64_t pieces = std::min((size + kPiece - 1) / kPiece, most);
  // Piece i of a large file ends at the file's last byte if i is the last.
  const auto begin_of = [&](int64_t i) {
    if (size <= most * kPiece) return i * kPiece;
    return static_cast<int64_t>(static_cast<__int128>(size - kPiece) * i / (most - 1));
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

}  // namespace

Result<uint64_t> Digest(const InputFile& file) { return DigestPieces(file, kPieces); }

Result<uint64_t> Digest(std::span<const InputFile* const> files) {
  if (files.size() == 1) return Digest(*files[0]);
  int64_t all = 0;
  for (const InputFile* file : files) all += file->bytes();
  uint64_t digest = files.size();
  for (const InputFile* file : files) {
    const auto share =
        all <= kPieces * kPiece
            ? kPieces
            : static_cast<int64_t>(static_cast<__int128>(kPieces) * file->bytes() / all);
    const Result<uint64_t> one = DigestPieces(*file, std::max<int64_t>(2, share));
    PP_RETURN_IF_ERROR(one.status());
    digest = XXH3_64bits_withSeed(&*one, sizeof *one, digest);
  }
  return digest;
}

}  // namespace pp
