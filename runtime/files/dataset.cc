#include "runtime/files/dataset.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <utility>

#include "runtime/files/digest.h"
#include "runtime/files/token_formats.h"

namespace pp {
namespace {

constexpr int64_t kScannedTokens = int64_t{1} << 29;

// Failed: this process may not open so many files more.
Status CheckDescriptors(const std::vector<std::string>& paths) {
  constexpr size_t kLater = 64;  // weights, checkpoints, devices
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error), end;
  const size_t needed = paths.size() + kLater + std::distance(open, end);
  rlimit limit{};
  if (paths.size() == 1 || getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur)
    return {};
  return Status::Failed(fmt::format("{}: are {} files, and this process may open {} (ulimit -n {})",
                                    Named(paths), paths.size(), limit.rlim_cur, needed));
}

}  // namespace

std::string Named(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? paths[0] : fmt::format("{} and {} more", paths[0], paths.size() - 1);
}

Result<Dataset> Dataset::Open(const std::vector<std::string>& paths, const Options& options) {
  PP_CHECK(options.vocab_size >= 1 && options.sequence_length >= 1 && !paths.empty());
  PP_RETURN_IF_ERROR(CheckDescriptors(paths));
  Dataset dataset(options);
  for (const std::string& path : paths) {
    auto file = OpenTokens(path, options.vocab_size);
    PP_RETURN_IF_ERROR(file.status());
    PP_RETURN_IF_ERROR(dataset.Add(std::move(*file)));
  }
  if (dataset.tokens() < 2)
    return Status::Invalid(
        fmt::format("{}: {} token{} (at least 2: one, and the next one to predict)", Named(paths),
                    dataset.tokens(), dataset.tokens() == 1 ? "" : "s"));
  const Result<bool> has_targets = dataset.HasTargets();
  PP_RETURN_IF_ERROR(has_targets.status());
  if (!*has_targets)
    return Status::Invalid(
        fmt::format("{}: no token counts as a target (at least one)", Named(paths)));
  PP_RETURN_IF_ERROR(dataset.Scan());
  return dataset;
}

Status Dataset::Add(std::unique_ptr<TokenReader> file) {
  if (!files_.empty() && file->is_text() != is_text()) {
    const auto kind = [](const TokenReader& one) { return one.is_text() ? "a text" : "of tokens"; };
    return Status::Invalid(fmt::format("{}: is {}, and {} is {} (texts alone, or files of tokens)",
                                       file->path(), kind(*file), files_[0]->path(),
                                       kind(*files_[0])));
  }
  if (!files_.empty() && file->row() != row()) {
    const auto rows = [](const TokenReader& one) {
      return one.row() == 0 ? "no rows" : fmt::format("rows of {} tokens", one.row());
    };
    return Status::Invalid(fmt::format("{}: has {}, and {} has {} (the same in all files)",
                                       file->path(), rows(*file), files_[0]->path(),
                                       rows(*files_[0])));
  }
  if (options_.documents && !options_.end_of_text) {
    if (file->documents() == 0 && file->tokens() > 0)
      return Status::Invalid(fmt::format(
          "{}: does not say where its documents begin (--end-of-text ID, a token file of "
          "tools/tokens or a Megatron dataset)",
          file->path()));
    PP_RETURN_IF_ERROR(file->CheckDocuments());
  }
  begins_.push_back(begins_.back() + file->tokens());
  files_.push_back(std::move(file));
  return {};
}

Result<uint64_t> Dataset::Digest() const {
  std::vector<const InputFile*> files;
  for (const auto& file : files_) {
    files.push_back(&file->file());
    if (options_.documents && file->documents_file() != nullptr)
      files.push_back(file->documents_file());
  }
  return pp::Digest(files);
}

Status Dataset::Scan() const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  int64_t left = kScannedTokens;
  for (const auto& file : files_) {
    if (file->knows_largest()) continue;
    const int64_t end = std::min(file->tokens(), left);
    for (int64_t first = 0; first < end; first += kBlock)
      PP_RETURN_IF_ERROR(file->Read(first, std::min(kBlock, end - first), block.data()));
    left -= end;
  }
  return {};
}

template <typename F>
Status Dataset::ForEachPart(int64_t first, int64_t count, F f) const {
  // The last file that begins at `first` or before it.
  size_t i = std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin() - 1;
  for (const int64_t end = first + count; first < end; ++i) {
    const int64_t there = std::min(end, begins_[i + 1]) - first;
    PP_RETURN_IF_ERROR(f(*files_[i], first - begins_[i], there));
    first += there;
  }
  return {};
}

Status Dataset::Read(int64_t first, int64_t count, int32_t* out) const {
  return ForEachPart(first, count, [&](const TokenReader& file, int64_t begin, int64_t there) {
    const Status status = file.Read(begin, there, out);
    out += there;
    return status;
  });
}

bool Dataset::has_uncounted_targets() const {
  const auto has_bits = [](const auto& file) { return file->has_target_bits(); };
  return options_.documents || std::any_of(files_.begin(), files_.end(), has_bits);
}

Result<bool> Dataset::HasTargets() const {
  const int64_t at_once = options_.documents ? 64 : sequences();  // of documents all are looked at
  for (int64_t n = 0; n < sequences(); n += at_once) {
    const Result<int64_t> counted = Counted(n, std::min(at_once, sequences() - n));
    PP_RETURN_IF_ERROR(counted.status());
    if (*counted > 0) return true;
  }
  return false;
}

Status Dataset::MarkStarts(const TokenReader& file, int64_t first, int64_t count,
                           int32_t* marks) const {
  if (!options_.documents) return {};
  return file.MarkStarts(options_.end_of_text, first, count, marks);
}

int64_t Dataset::Positions(int64_t n, int64_t count) const {
  const int64_t length = options_.sequence_length;
  return std::min((n + count) * length, tokens() - 1) - n * length;
}

Result<int64_t> Dataset::Counted(int64_t n, int64_t count) const {
  return CountedFrom(n, Positions(n, count));
}

Result<int64_t> Dataset::CountedOf(int64_t n, int64_t length) const {
  return CountedFrom(n, PositionsOf(n, length));
}

Result<int64_t> Dataset::CountedFrom(int64_t n, int64_t positions) const {
  int64_t counted = 0;
  const auto add = [&](const TokenReader& file, int64_t first, int64_t there) {
    const Result<int64_t> in = CountedIn(file, first, there);
    if (in.ok()) counted += *in;
    return in.status();
  };
  PP_RETURN_IF_ERROR(ForEachPart(n * options_.sequence_length + 1, positions, add));
  return counted;
}

Result<int64_t> Dataset::CountedIn(const TokenReader& file, int64_t first, int64_t count) const {
  int64_t counted = 0;
  if (!options_.documents) {
    const Result<int64_t> before = file.CountedBefore(first);
    PP_RETURN_IF_ERROR(before.status());
    const Result<int64_t> after = file.CountedBefore(first + count);
    PP_RETURN_IF_ERROR(after.status());
    return *after - *before;
  }
  std::array<int32_t, 2048> marks;
  for (const int64_t end = first + count; first < end;) {
    const int64_t there = std::min(std::ssize(marks), end - first);
    marks.fill(0);
    PP_RETURN_IF_ERROR(file.Mask(first, there, marks.data()));
    PP_RETURN_IF_ERROR(MarkStarts(file, first, there, marks.data()));
    counted += std::count(marks.begin(), marks.begin() + there, 0);
    first += there;
  }
  return counted;
}

Status Dataset::Targets(int64_t n, std::span<int32_t> targets) const {
  PP_RETURN_IF_ERROR(Copy(n, 1, -1, targets));
  const int64_t sequence = n % sequences();
  int32_t* marks = targets.data();
  return ForEachPart(sequence * options_.sequence_length + 1,
                     PositionsOf(sequence, std::ssize(targets)),
                     [&](const TokenReader& file, int64_t first, int64_t there) {
                       Status status = file.Mask(first, there, marks);
                       if (status.ok()) status = MarkStarts(file, first, there, marks);
                       marks += there;
                       return status;
                     });
}

Status Dataset::DocumentPositions(int64_t n, std::span<int32_t> positions) const {
  const int64_t sequence = n % sequences();
  std::fill(positions.begin(), positions.end(), 0);
  int32_t* marks = positions.data();
  const auto mark = [&](const TokenReader& file, int64_t first, int64_t there) {
    const Status status = MarkStarts(file, first, there, marks);
    marks += there;
    return status;
  };
  PP_RETURN_IF_ERROR(ForEachPart(sequence * options_.sequence_length,
                                 PositionsOf(sequence, std::ssize(positions)), mark));
  positions[0] = 0;
  for (size_t t = 1; t < positions.size(); ++t)
    positions[t] = positions[t] < 0 ? 0 : positions[t - 1] + 1;
  return {};
}

// The tokens of sequence n, each by `shift` tokens later; `missing` where there is no target.
Status Dataset::Copy(int64_t n, int shift, int32_t missing, std::span<int32_t> out) const {
  const int64_t sequence = n % sequences(), there = PositionsOf(sequence, std::ssize(out));
  std::fill(out.begin() + there, out.end(), missing);
  return Read(sequence * options_.sequence_length + shift, there, out.data());
}

}  // namespace pp
