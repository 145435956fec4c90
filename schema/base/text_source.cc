#include "schema/base/text_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pp {
namespace {

constexpr size_t kPiece = 1 << 16;

bool IsPipe(const std::string& path) {
  struct stat stat;
  return ::stat(path.c_str(), &stat) == 0 && S_ISFIFO(stat.st_mode);
}

}  // namespace

TextSource::TextSource(std::string path, std::string right)
    : path_(std::move(path)), right_(std::move(right)), piece_(kPiece, '\0') {}

TextSource::TextSource(TextSource&& other) noexcept
    : path_(std::move(other.path_)),
      right_(std::move(other.right_)),
      file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      read_(other.read_),
      piece_(std::move(other.piece_)) {}

TextSource::~TextSource() {
  if (descriptor_ > STDIN_FILENO) close(descriptor_);
}

Result<TextSource> TextSource::Open(const std::string& path, const std::string& right) {
  TextSource source(path, right);
  if (path == kStandardInput) {
    source.descriptor_ = STDIN_FILENO;
  } else if (IsPipe(path)) {
    // Without O_NONBLOCK, opening it would wait for a writer.
    source.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source.descriptor_ < 0) return CannotRead(path, errno, right);
  } else {
    Result<InputFile> file = InputFile::Open(path, right);
    PP_RETURN_IF_ERROR(file.status());
    source.file_.emplace(std::move(*file));
  }
  return source;
}

Result<std::string_view> TextSource::Next() {
  const Result<size_t> got = file_ ? FillFromFile() : FillFromStream();
  PP_RETURN_IF_ERROR(got.status());
  read_ += static_cast<int64_t>(*got);
  if (read_ == 0) return Status::Invalid(fmt::format("{}: empty ({})", Shown(path_), right_));
  return std::string_view(piece_.data(), *got);
}

Result<size_t> TextSource::FillFromFile() {
  const int64_t bytes = std::min<int64_t>(kPiece, file_->bytes() - read_);
  PP_RETURN_IF_ERROR(file_->Read(read_, piece_.data(), bytes));
  return static_cast<size_t>(bytes);
}

Result<size_t> TextSource::FillFromStream() {
  while (true) {
    const ssize_t got = read(descriptor_, piece_.data(), kPiece);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return CannotRead(path_, errno, right_);
    pollfd ready{descriptor_, POLLIN, 0};
    poll(&ready, 1, /*timeout=*/-1);
  }
}

Result<std::string> ReadText(const std::string& path, const std::string& right,
                             int64_t most_bytes) {
  Result<TextSource> source = TextSource::Open(path, right);
  PP_RETURN_IF_ERROR(source.status());
  if (source->bytes() > most_bytes) return TooLong(path, source->bytes(), most_bytes, right);
  std::string text;
  text.reserve(source->bytes());
  while (true) {
    const Result<std::string_view> piece = source->Next();
    PP_RETURN_IF_ERROR(piece.status());
    if (piece->empty()) return text;
    text += *piece;
    const auto bytes = static_cast<int64_t>(text.size());
    if (bytes > most_bytes) return TooLong(path, bytes, most_bytes, right);
  }
}

}  // namespace pp
