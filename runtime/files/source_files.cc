#include "runtime/files/source_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "runtime/files/checked_part.h"
#include "runtime/files/folder.h"
#include "schema/base/disk.h"
#include "schema/base/json.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = 64 << 20;
constexpr std::string_view kPartPrefix = "source-";

constexpr std::string_view kNames[] = {kConfigName,
                                       "generation_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "vocab.txt",
                                       "vocab.bpe",
                                       "encoder.json",
                                       "spm.model",
                                       "merges.txt",
                                       "tekken.json",
                                       "spiece.model",
                                       "sentencepiece.bpe.model",
                                       "chat_template.json"};

// What is of a tokenizer, too, or is code of the model's own, and is not kept: it is said.
bool IsLeft(const fs::path& path, bool has_code) {
  return path.filename() == "additional_chat_templates" || path.filename() == "tokenizer" ||
         (has_code && path.extension() == ".py");
}

// Where a member of the outermost object is in a text: its key, without quotes, and its value.
struct Member {
  std::string_view key;
  size_t begin = 0, end = 0;  // of the value
};

// REQUIRES: the text is JSON, though numbers may be NaN or Infinity.
std::vector<Member> MembersOf(std::string_view text) {
  std::vector<Member> members;
  std::string_view last;  // string
  bool in_value = false;
  int depth = 0;
  const auto end_value = [&](size_t at) {
    if (depth != 1 || !std::exchange(in_value, false)) return;
    members.back().end = text.find_last_not_of(" \t\r\n", at - 1) + 1;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"': {
        const size_t begin = at + 1;
        while (++at < text.size() && text[at] != '"') at += text[at] == '\\' ? 1 : 0;
        last = text.substr(begin, at - begin);
        break;
      }
      case '{':
      case '[':
        ++depth;
        break;
      case ':':
        if (depth == 1) {
          members.push_back({last, text.find_first_not_of(" \t\r\n", at + 1)});
          in_value = true;
        }
        break;
      case ',':
        end_value(at);
        break;
      case '}':
      case ']':
        end_value(at);
        --depth;
        break;
      default:
        break;
    }
  }
  return members;
}

// The text without this member, if it has it.
std::string Without(std::string text, std::string_view key) {
  for (const Member& member : MembersOf(text)) {
    if (member.key != key) continue;
    size_t begin = static_cast<size_t>(member.key.data() - text.data()) - 1, end = member.end;
    const size_t after = text.find_first_not_of(" \t\r\n", end);
    if (text[after] == ',') {
      end = text.find_first_not_of(" \t\r\n", after + 1);
    } else if (const size_t before = text.find_last_not_of(" \t\r\n", begin - 1);
               text[before] == ',') {
      begin = before;  // it is the last one
    }
    return text.erase(begin, end - begin);
  }
  return text;
}

// transformers' names for them.
std::string_view TorchName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return "float32";
    case Dtype::kBf16:
      return "bfloat16";
    case Dtype::kFp16:
      return "float16";
  }
  PP_CHECK(false);
}

// Returns 0, or an errno.
int WriteFile(const std::string& path, std::string_view bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  int error = WriteAll(file, bytes);
  if (error == 0) error = Sync(file);
  return close(file) != 0 && error == 0 ? errno : error;
}

Result<std::string> ReadConfig(const std::string& path) {
  Result<std::string> text = ReadWhole(path, "a Hugging Face config.json", kMostBytes);
  PP_RETURN_IF_ERROR(text.status());
  const Result<nlohmann::json> parsed = ParseJson(*text);
  PP_RETURN_IF_ERROR(parsed.status().In(path));
  if (parsed->is_object()) return text;
  return Status::Invalid(path + ": not a JSON object (a Hugging Face config.json)");
}

}  // namespace

bool IsSourceFile(std::string_view name) {
  const bool fits = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
                    name.starts_with("tokenizer") || name.ends_with(".tiktoken") ||
                    name.ends_with(".jinja");
  return fits && name.find('/') == std::string_view::npos;
}

int64_t TotalBytes(const SourceFiles& files) {
  int64_t bytes = 0;
  for (const SourceFile& file : files) bytes += static_cast<int64_t>(file.bytes.size());
  return bytes;
}

std::vector<std::string> SourceNames(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    std::error_code ignored;
    if (name.starts_with(prefix) && IsSourceFile(name.substr(prefix.size())) &&
        !fs::is_directory(at->path(), ignored))
      names.push_back(name.substr(prefix.size()));
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a != kConfigName, a) < std::pair(b != kConfigName, b);
  });
  return names;
}

int64_t SourceBytes(const std::string& folder, const std::string& prefix) {
  int64_t bytes = 0;
  for (const std::string& name : SourceNames(folder, prefix)) {
    std::error_code error;
    const auto size = fs::file_size(folder + "/" + prefix + name, error);
    if (!error && std::cmp_less_equal(size, kMostBytes)) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Result<SourceFiles> ReadSource(const std::string& folder, std::vector<std::string>* notes) {
  SourceFiles files;
  std::vector<std::string> left;
  for (const std::string& name : SourceNames(folder)) {
    const std::string path = folder + "/" + name, right = "a file of a tokenizer";
    Result<std::string> bytes =
        name == kConfigName ? ReadConfig(path) : ReadWhole(path, right, kMostBytes);
    if (bytes.ok()) {
      files.push_back({name, std::move(*bytes)});
    } else if (name == kConfigName) {
      return bytes.status();
    } else {
      left.push_back(bytes.status().message());
    }
  }
  const bool has_code = std::any_of(files.begin(), files.end(), [](const SourceFile& file) {
    return file.bytes.find("\"auto_map\"") != std::string::npos;
  });
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (IsLeft(at->path(), has_code)) left.push_back(at->path());
  std::sort(left.begin(), left.end());
  if (!left.empty())
    notes->push_back(fmt::format("not kept with the model: {}", fmt::join(left, "; ")));
  return files;
}

std::string ExportedConfig(std::string_view given, std::string_view architecture, Dtype dtype) {
  std::string config(given);
  for (const char* key : {"quantization_config", "compression_config"})  // the tensors are not
    config = Without(std::move(config), key);
  const std::string type = fmt::format("\"{}\"", TorchName(dtype));
  const std::string classes = fmt::format("[\"{}\"]", architecture);
  std::string text;
  size_t done = 0;
  bool has_type = false, has_classes = false;
  for (const Member& member : MembersOf(config)) {
    const bool is_type = member.key == "torch_dtype" || member.key == "dtype";
    if (!is_type && member.key != "architectures") continue;
    (is_type ? has_type : has_classes) = true;
    text += config.substr(done, member.begin - done);
    text += is_type ? type : classes;
    done = member.end;
  }
  text += config.substr(done);
  std::string missing;
  if (!has_classes) missing += fmt::format("\n  \"architectures\": {},", classes);
  if (!has_type) missing += fmt::format("\n  \"torch_dtype\": {},", type);
  return text.insert(text.find('{') + 1, missing);
}

std::string SourcePartName(const std::string& name) { return std::string(kPartPrefix) + name; }

bool IsSourcePart(std::string_view name) {
  return name.starts_with(kPartPrefix) && IsSourceFile(name.substr(kPartPrefix.size()));
}

Result<std::vector<SourcePart>> WriteSourceParts(const std::string& folder,
                                                 const SourceFiles& files) {
  std::vector<SourcePart> parts;
  for (const SourceFile& file : files) {
    const std::string path = folder + "/" + SourcePartName(file.name);
    if (const int error = WriteFile(path, file.bytes)) return CannotWrite(path, error);
    parts.push_back(
        {file.name, std::ssize(file.bytes), SumOf(file.bytes.data(), std::ssize(file.bytes))});
  }
  return parts;
}

Result<SourceFiles> ReadSourceParts(const std::string& folder,
                                    const std::vector<SourcePart>& parts) {
  SourceFiles files;
  for (const SourcePart& part : parts) {
    const std::string path = folder + "/" + SourcePartName(part.name);
    const Result<InputFile> file = OpenPart(path, "a checkpoint's file of its source");
    PP_RETURN_IF_ERROR(file.status());
    std::string bytes(std::min(file->bytes(), kMostBytes), 0);
    PP_RETURN_IF_ERROR(file->Read(0, bytes.data(), std::ssize(bytes)));
    if (!IsSourceFile(part.name) || file->bytes() != part.bytes ||
        SumOf(bytes.data(), std::ssize(bytes)) != part.sum)
      return Status::Invalid(path + ": damaged (a checkpoint's file of its source)");
    files.push_back({part.name, std::move(bytes)});
  }
  return files;
}

}  // namespace pp
