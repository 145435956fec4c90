// Files that are no data, though each of their bytes could be a token.
#include <catch2/catch.hpp>
#include <fstream>
#include <utility>

#include "runtime/files/dataset.h"
#include "tests/folder.h"

namespace pp {
namespace {

constexpr const char* kNeeded =
    " (a text, a token file of tools/tokens, an llm.c .bin or a Megatron .bin/.idx is needed)";

TEST_CASE("what is no text is named") {
  const Folder folder;
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  };
  const auto error = [&](const std::string& name) {
    const std::string path = folder / name;
    const std::string message =
        Dataset::Open({path}, {.vocab_size = 256, .sequence_length = 1}).status().message();
    return message.starts_with(path) ? name + message.substr(path.size()) : message;
  };
  const std::pair<std::string, const char*> starts[] = {
      {"\x1f\x8b\x08", "gzip data"},
      {"PK\x03\x04", "a zip archive"},
      {"PAR1", "a Parquet table"},
      {"ARROW1", "an Arrow table"},
      {"\xff\xff\xff\xff", "an Arrow stream"},
      {"\x28\xb5\x2f\xfd", "Zstandard data"},
      {std::string("\xfd\x37zXZ\0", 6), "xz data"},
      {"BZh91AY&SY", "bzip2 data"},
      {"7z\xbc\xaf\x27\x1c", "a 7z archive"},
      {"\x93NUMPY", "a NumPy array"},
      {"\x89HDF\r\n", "HDF5 data"},
      {"SQLite format 3", "an SQLite database"},
      {"%PDF-1.7", "a PDF"},
      {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n", "JSON"},
      {"\n [ {\n  \"text\" : 1", "JSON"},
      {"[\"one text\", \"another\"]", "JSON"},
      {"\xef\xbb\xbf{\"a\":", "JSON"},
  };
  for (const auto& [start, what] : starts) {
    write("x", start + "\nsome more text");
    CHECK(error("x") == std::string("x: is ") + what + ", no text" + kNeeded);
  }
  for (const char* name : {"x.jsonl", "x.json", "x.JSONL", "x.ndjson"}) {
    write(name, "\"a string a line\"\n");
    CHECK(error(name) == std::string(name) + ": is JSON, no text" + kNeeded);
  }
  for (const char* text : {"{a set}", "{\"a\", \"b\"}", "[1]: a note", "{}", "PKZIP", "version 2",
                           "BZh, he said", "[{\"", "{\"never closed"}) {
    write("x", text);
    CHECK(error("x").empty());
  }
}

}  // namespace
}  // namespace pp
