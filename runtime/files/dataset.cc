#include "runtime/files/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/files/token_formats.h"

namespace pp {
namespace {

constexpr int64_t kScannedTokens = int64_t{1} << 29;

}  // namespace

Result<Dataset> Dataset::Open(const std::string& path, const Options& options) {
  PP_CHECK(options.vocab_size >= 1 && options.sequence_length >= 1);
  auto reader = OpenTokens(path, options.vocab_size);
  PP_RETURN_IF_ERROR(reader.status());
  Dataset dataset(std::move(*reader), options);
  if (dataset.tokens() < 2)
    return Status::Invalid(
        fmt::format("{}: {} token{} (at least 2: one, and the next one to predict)",
                    dataset.reader_->path(), dataset.tokens(), dataset.tokens() == 1 ? "" : "s"));
  PP_RETURN_IF_ERROR(dataset.Scan());
  return dataset;
}

Status Dataset::Scan() const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  const int64_t end = std::min(tokens(), kScannedTokens);
  for (int64_t first = 0; first < end; first += kBlock)
    PP_RETURN_IF_ERROR(reader_->Read(first, std::min(kBlock, end - first), block.data()));
  return {};
}

// The tokens of sequence n, each by `shift` tokens later; `missing` where there is no target.
Status Dataset::Copy(int64_t n, int shift, int32_t missing, int32_t* out) const {
  const int64_t begin = n % sequences() * options_.sequence_length;
  const int64_t there = std::min<int64_t>(options_.sequence_length, tokens() - 1 - begin);
  std::fill_n(out + there, options_.sequence_length - there, missing);
  return reader_->Read(begin + shift, there, out);
}

}  // namespace pp
