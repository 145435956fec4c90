#include "runtime/files/not_text.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

namespace pp {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view start;  // of the file
  const char* name;
};
constexpr Format kFormats[] = {
    {"\x1f\x8b"sv, "gzip data"},
    {"PK\x03\x04"sv, "a zip archive"},
    {"PAR1"sv, "a Parquet table"},
    {"ARROW1"sv, "an Arrow table"},
    {"\xff\xff\xff\xff"sv, "an Arrow stream"},
    {"\x28\xb5\x2f\xfd"sv, "Zstandard data"},
    {"\xfd\x37zXZ\0"sv, "xz data"},
    {"BZh91AY&SY"sv, "bzip2 data"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x89HDF\r\n"sv, "HDF5 data"},
    {"SQLite format 3"sv, "an SQLite database"},
    {"%PDF-"sv, "a PDF"},
};
constexpr std::string_view kJsonNames[] = {".jsonl", ".ndjson", ".json"};

std::string_view WithoutSpace(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == text.npos ? std::string_view() : text.substr(first);
}

// What follows a JSON string that begins here, without space; none: there is no such string.
std::string_view AfterString(std::string_view text) {
  if (!text.starts_with('"')) return {};
  const size_t end = text.find('"', 1);
  return end == text.npos ? std::string_view() : WithoutSpace(text.substr(end + 1));
}

// Whether a JSON object begins here, alone or in a list, or a list of strings: {"key": or ["one",
bool BeginsJson(std::string_view text) {
  text = WithoutSpace(text);
  if (text.starts_with("\xef\xbb\xbf")) text = WithoutSpace(text.substr(3));
  if (text.starts_with('[')) {
    text = WithoutSpace(text.substr(1));
    const std::string_view after = AfterString(text);
    if (after.starts_with(',') || after.starts_with(']')) return true;
  }
  return text.starts_with('{') && AfterString(WithoutSpace(text.substr(1))).starts_with(':');
}

}  // namespace

Result<std::string> NotText(const std::string& path, const InputFile& file) {
  std::string start(std::min<int64_t>(file.bytes(), 4096), 0);
  PP_RETURN_IF_ERROR(file.Read(0, start.data(), static_cast<int64_t>(start.size())));
  for (const Format& format : kFormats)
    if (start.starts_with(format.start)) return std::string(format.name);
  std::string extension = std::filesystem::path(path).extension();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const bool named =
      std::find(std::begin(kJsonNames), std::end(kJsonNames), extension) != std::end(kJsonNames);
  return std::string(named || BeginsJson(start) ? "JSON" : "");
}

}  // namespace pp
