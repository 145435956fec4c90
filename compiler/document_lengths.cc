#include "compiler/document_lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // tokens of a document, and documents

bool ReadRow(std::string_view line, int64_t* tokens, int64_t* documents) {
  const size_t blank = line.find(' ');
  return blank != line.npos && ReadNumber(line.substr(0, blank), tokens) &&
         ReadNumber(line.substr(blank + 1), documents) && *tokens >= 1 && *tokens <= kMost &&
         *documents >= 0 && *documents <= kMost;
}

}  // namespace

Result<int> MeanDocument(std::string_view text, int sequence_length) {
  double sum = 0, squares = 0;
  int number = 0;
  for (const std::string_view line : Split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    int64_t tokens = 0, documents = 0;
    if (!ReadRow(line, &tokens, &documents))
      return Status::Invalid(fmt::format(
          "line {}: '{}' (TOKENS DOCUMENTS, as in 512 3: what tools/tokens --lengths writes)",
          number, Shown(line)));
    const auto length = static_cast<double>(sequence_length);
    const auto whole = static_cast<double>(tokens / sequence_length);
    const auto rest = static_cast<double>(tokens % sequence_length);
    const auto count = static_cast<double>(documents);
    sum += count * static_cast<double>(tokens);
    squares += count * (whole * length * length + rest * rest);
  }
  if (sum == 0) return Status::Invalid("has no documents (at least one)");
  return std::max(1, static_cast<int>(std::lround(squares / sum)));
}

}  // namespace pp
