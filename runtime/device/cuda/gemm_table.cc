#include "runtime/device/cuda/gemm_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <sstream>

#include "schema/base/disk.h"
#include "schema/base/number.h"

namespace pp {
namespace {

using kernels::MatmulShape;

constexpr const char* kOperands[] = {"nn", "nt", "tn"};
constexpr const char* kNumbers[] = {"fp32", "bf16", "bf16-sum", "fp16", "fp16-sum"};
constexpr const char* kUpdates[] = {"set", "add"};
constexpr const char* kBias[] = {"-", "bias"};
constexpr const char* kResidual[] = {"-", "residual"};
constexpr const char* kEpilogues[] = {"-", "gelu", "gelu-backward"};
constexpr char kFirstLine[] = "piperun gemms 1", kGpu[] = "gpu ", kLibrary[] = "cublaslt ",
               kChecksum[] = "checksum ";
constexpr size_t kWords = 10;  // per line

template <typename Value>
std::string Name(std::span<const char* const> names, Value value) {
  return names[static_cast<size_t>(value)];
}

template <typename Value>
bool IsName(std::span<const char* const> names, const std::string& text, Value* value) {
  const auto found = std::find(names.begin(), names.end(), text);
  *value = static_cast<Value>(found - names.begin());
  return found != names.end();
}

// Three numbers from `least` on with `between` between them.
bool AreNumbers(const std::string& text, char between, int64_t least,
                int64_t* const (&numbers)[3]) {
  size_t begin = 0;
  for (int64_t* number : numbers) {
    const bool last = number == numbers[2];
    const size_t end = last ? text.size() : text.find(between, begin);
    if (end == std::string::npos || begin > end) return false;
    if (!ReadNumber(std::string_view(text).substr(begin, end - begin), number) || *number < least)
      return false;
    begin = end + 1;
  }
  return true;
}

std::string Hex(const GemmAlgorithm& algorithm) {
  return fmt::format("{:016x}", fmt::join(algorithm.words, ""));
}
bool IsHex(const std::string& text, GemmAlgorithm* algorithm) {
  if (text.size() != 16 * algorithm->words.size()) return false;
  for (size_t i = 0; i < algorithm->words.size(); ++i)
    if (!ReadNumber(std::string_view(text).substr(16 * i, 16), &algorithm->words[i], 16))
      return false;
  return true;
}

Status Wrong(const std::string& word, const char* right) {
  return Status::Invalid(fmt::format("'{}' ({})", Shown(word), right));
}

uint64_t ChecksumOf(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

std::string ToText(const MatmulShape& shape) {
  const MatmulShape s = Whole(shape);
  return fmt::format("{} {}x{}x{} {},{},{} {} {} {} {} {}", Name(kOperands, s.operands), s.m, s.n,
                     s.k, s.lda, s.ldb, s.ldc, Name(kNumbers, s.numbers), Name(kUpdates, s.update),
                     Name(kBias, s.bias), Name(kResidual, s.residual),
                     Name(kEpilogues, s.epilogue));
}

Result<GemmTable::Row> GemmTable::ParseRow(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.size() != kWords)
    return Wrong(line,
                 "operands, sizes, strides, numbers, update, bias, residual, epilogue, "
                 "microseconds and algorithm");
  Row row;
  MatmulShape& s = row.shape;
  if (!IsName(kOperands, words[0], &s.operands)) return Wrong(words[0], "nn, nt or tn");
  if (!AreNumbers(words[1], 'x', 1, {&s.m, &s.n, &s.k})) return Wrong(words[1], "as 16x32x64");
  if (!AreNumbers(words[2], ',', 1, {&s.lda, &s.ldb, &s.ldc}))
    return Wrong(words[2], "as 64,32,32");
  if (!IsName(kNumbers, words[3], &s.numbers))
    return Wrong(words[3], "fp32, bf16, bf16-sum, fp16 or fp16-sum");
  if (!IsName(kUpdates, words[4], &s.update)) return Wrong(words[4], "set or add");
  if (!IsName(kBias, words[5], &s.bias)) return Wrong(words[5], "bias or -");
  if (!IsName(kResidual, words[6], &s.residual)) return Wrong(words[6], "residual or -");
  if (!IsName(kEpilogues, words[7], &s.epilogue))
    return Wrong(words[7], "gelu, gelu-backward or -");
  if (!ReadNumber(words[8], &row.microseconds) || !std::isfinite(row.microseconds))
    return Wrong(words[8], "microseconds");
  if (!IsHex(words[9], &row.algorithm)) return Wrong(words[9], "128 hexadecimal digits");
  return row;
}

Result<GemmTable> GemmTable::Parse(std::string_view text) {
  GemmTable table({});
  size_t begin = 0;
  for (int number = 1;; ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos)
      return Status::Invalid(fmt::format("ends in line {} (after a checksum)", number));
    const std::string line(text.substr(begin, end - begin));
    const std::string where = fmt::format("line {}", number);
    if (number == 1) {
      if (line != kFirstLine)
        return Status::Invalid("has no algorithms of products (a file of piperun --tune-gemms)");
    } else if (number == 2) {
      if (!line.starts_with(kGpu)) return Wrong(line, "gpu NAME").In(where);
      table.machine_.gpu = line.substr(sizeof kGpu - 1);
    } else if (number == 3) {
      if (!line.starts_with(kLibrary) ||
          !ReadNumber(line.substr(sizeof kLibrary - 1), &table.machine_.library))
        return Wrong(line, "cublaslt VERSION").In(where);
    } else if (line.starts_with(kChecksum)) {
      uint64_t checksum = 0;
      if (!ReadNumber(line.substr(sizeof kChecksum - 1), &checksum, 16) || end + 1 != text.size())
        return Wrong(line, "checksum and 16 digits as the last line").In(where);
      if (checksum != ChecksumOf(text.substr(0, begin)))
        return Wrong(line, "the lines before have a different one: the file is damaged").In(where);
      return table;
    } else {
      Result<Row> row = ParseRow(line);
      if (!row.ok()) return row.status().In(where);
      if (table.Find(row->shape) != nullptr)
        return Wrong(ToText(row->shape), "one line per product").In(where);
      table.rows_.push_back(*row);
    }
    begin = end + 1;
  }
}

Result<GemmTable> GemmTable::Open(const std::string& path) {
  constexpr char kRight[] = "a file of piperun --tune-gemms";
  constexpr int64_t kMostBytes = 1 << 24;
  Result<InputFile> file = InputFile::Open(path, kRight);
  PP_RETURN_IF_ERROR(file.status());
  if (file->bytes() > kMostBytes)
    return Status::Invalid(fmt::format("{}: has {} bytes ({})", path, file->bytes(), kRight));
  std::string text(static_cast<size_t>(file->bytes()), '\0');
  PP_RETURN_IF_ERROR(file->Read(0, text.data(), file->bytes()));
  Result<GemmTable> table = Parse(text);
  if (!table.ok()) return table.status().In(path);
  table->path_ = path;
  return table;
}

std::string GemmTable::Print() const {
  std::string text =
      fmt::format("{}\n{}{}\n{}{}\n", kFirstLine, kGpu, machine_.gpu, kLibrary, machine_.library);
  for (const Row& row : rows_)
    text += fmt::format("{} {:.1f} {}\n", ToText(row.shape), row.microseconds, Hex(row.algorithm));
  return text + fmt::format("{}{:016x}\n", kChecksum, ChecksumOf(text));
}

void GemmTable::Add(const MatmulShape& shape, const GemmAlgorithm& algorithm, double microseconds) {
  PP_CHECK(Find(shape) == nullptr);
  rows_.push_back({Whole(shape), algorithm, microseconds});
}

const GemmAlgorithm* GemmTable::Find(const MatmulShape& shape) const {
  const MatmulShape whole = Whole(shape);
  for (const Row& row : rows_)
    if (row.shape == whole) return &row.algorithm;
  return nullptr;
}

int GemmTable::Lacks(const std::vector<MatmulShape>& shapes) const {
  return static_cast<int>(std::count_if(shapes.begin(), shapes.end(), [&](MatmulShape shape) {
    const bool has = Find(shape) != nullptr;
    shape.epilogue = kernels::Epilogue::kNone;
    return !has && Find(shape) == nullptr;
  }));
}

Status GemmTable::CheckMachine(const GemmMachine& machine) const {
  if (machine == machine_) return {};
  return Status::Invalid(
      fmt::format("--gemms: {}: is for {} with cuBLASLt {}, and this is {} with {} (piperun "
                  "--tune-gemms on this machine)",
                  path_, machine_.gpu, machine_.library, machine.gpu, machine.library));
}

}  // namespace pp
