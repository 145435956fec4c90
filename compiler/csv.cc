#include "compiler/csv.h"

#include <fmt/format.h>

#include <utility>

namespace pp {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";

void Strip(std::string* cell) {
  cell->erase(cell->find_last_not_of(kSpace) + 1);
  cell->erase(0, cell->find_first_not_of(kSpace));
}

}  // namespace

CsvReader::CsvReader(std::string_view text, std::string origin)
    : text_(text), origin_(std::move(origin)) {}

Result<bool> CsvReader::Next(std::string* cell) {
  cell->clear();
  if (position_ >= text_.size()) return false;
  if (std::exchange(row_ends_, false)) {
    ++row_;
    column_ = 0;
  }
  ++column_;
  bool quoted = false;
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    // Two quotes inside quotes are one.
    if (c == '"' && quoted && text_.substr(position_ + 1).starts_with('"'))
      ++position_;
    else if (c == '"') {
      quoted = !quoted;
      continue;
    } else if (!quoted && (c == ',' || c == '\n')) {
      break;
    }
    *cell += c;
  }
  if (quoted) return Wrong("a quote that is never closed");
  row_ends_ = position_ < text_.size() && text_[position_] == '\n';
  ++position_;
  Strip(cell);
  return true;
}

Status CsvReader::Wrong(const std::string& what) const {
  return Status::Invalid(fmt::format("{}: row {}, column {}: {}", origin_, row_, column_, what));
}

}  // namespace pp
