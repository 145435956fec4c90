// Comma-separated values, one cell after the other: RFC 4180, with LF or CRLF after a row and an
// optional byte-order mark, as Python's csv module and spreadsheets write them.
#pragma once

#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

class CsvReader {
 public:
  // `origin` is the file's name in errors. REQUIRES: `text` outlives the reader.
  CsvReader(std::string_view text, std::string origin);

  // The next cell, without its quotes and without white space at its ends; false at the
  // end. Error: a quote that is never closed.
  Result<bool> Next(std::string* cell);

  // The position of the cell; both count from 1.
  int row() const { return row_; }
  int column() const { return column_; }

  // An error about that cell: "FILE: row 2, column 7: WHAT".
  Status Wrong(const std::string& what) const;

 private:
  std::string_view text_;
  const std::string origin_;
  size_t position_ = 0;
  int row_ = 1, column_ = 0;
  bool row_ends_ = false;  // after the cell
};

}  // namespace pp
