#include "schema/base/json.h"

#include <fmt/format.h>

#include <istream>
#include <streambuf>
#include <utility>
#include <vector>

namespace pp {
namespace {

using Json = nlohmann::json;
using Type = Json::value_t;

// What nlohmann's parser calls for each token. It makes values of those that are parts: the text's
// only value, or those in a container. (The library's own parser with a callback looks through all
// of an array at the end of each of its objects.)
//
//   {"name": 1, "events": [{"ts": 0}, {"ts": 1}]}     a part of the member "events" is at level 2
//   level 0     level 1    level 2
class PartReader {
 public:
  // The whole text is one part.
  explicit PartReader(const TakeJsonPart& take) : level_(0), inside_(true), take_(take) {}
  PartReader(const JsonContainer& container, const TakeJsonPart& take)
      : level_(container.member.empty() ? 1 : 2), container_(container), take_(take) {}

  bool null() { return Value(nullptr); }
  bool boolean(bool value) { return Value(value); }
  bool number_integer(int64_t value) { return Value(value); }
  bool number_unsigned(uint64_t value) { return Value(value); }
  bool number_float(double value, const std::string&) { return Value(value); }
  bool string(std::string& value) { return Value(value); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return Begin(Type::object); }
  bool start_array(size_t) { return Begin(Type::array); }
  bool end_object() { return End(); }
  bool end_array() { return End(); }
  bool key(std::string& name) {
    if (!Enters()) return false;
    if (inside_ && open_ > level_) {
      place_ = &(*parents_.back())[name];
      return true;
    }
    key_ = name;
    if (level_ < 2 || open_ != 1 || key_ != container_.member) return true;
    return !std::exchange(named_, true) ||
           Refuse(fmt::format("{} occurs twice", Shown(container_.member)));
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) { return false; }

  bool found() const { return found_; }
  const Status& status() const { return status_; }
  // Bytes that were read since the last token outside of parts. False: they are too many.
  bool Count(size_t bytes) {
    unbroken_ += bytes;
    return unbroken_ <= kMostJsonPart ||
           Refuse(fmt::format("a value of more than {} bytes", kMostJsonPart));
  }

 private:
  bool Refuse(std::string message) {
    status_ = Status::Invalid(std::move(message));
    return false;
  }
  // False: this token is nested too deeply, or one of too many.
  bool Enters() {
    if (open_ > kMostJsonDepth)
      return Refuse(
          fmt::format("JSON nested more than {} levels deep (at most that)", kMostJsonDepth));
    if (!inside_ || open_ <= level_) {
      unbroken_ = values_ = 0;
    } else if (++values_ > kMostJsonValues && level_ > 0) {
      return Refuse(fmt::format("a value with more than {} in it", kMostJsonValues));
    }
    return true;
  }
  // Where the value belongs that begins now.
  Json* Place() {
    if (open_ == level_) return &part_;
    Json& parent = *parents_.back();
    return parent.is_array() ? &parent.emplace_back() : place_;
  }
  template <typename T>
  bool Value(const T& value) {
    if (!Enters()) return false;
    if (!inside_) return true;
    *Place() = Json(value);
    return open_ > level_ || Take();
  }
  bool Begin(Type type) {
    if (!Enters()) return false;
    if (inside_) {
      Json* place = Place();
      *place = Json(type);
      parents_.push_back(place);
    }
    ++open_;
    if (level_ == 0 || open_ > level_) return true;
    if (open_ == 1) outermost_ = type;
    const bool here = level_ == 1 || key_ == container_.member;
    if (open_ == level_ && here && outermost_ == Type::object && type == container_.type)
      inside_ = found_ = true;
    return true;
  }
  bool End() {
    --open_;
    if (!inside_) return true;
    if (open_ < level_) {
      inside_ = false;
      return true;
    }
    parents_.pop_back();
    return open_ > level_ || Take();
  }
  bool Take() {
    status_ = take_({index_++, key_, std::exchange(part_, Json())});
    return status_.ok();
  }

  const int level_;  // of the parts: how many containers are around one
  const JsonContainer container_;
  bool inside_ = false;  // the container; INVARIANT: then at least `level_` are open
  bool found_ = false, named_ = false;
  Type outermost_ = Type::null;
  int open_ = 0;  // containers
  size_t index_ = 0;
  size_t unbroken_ = 0, values_ = 0;  // of this part
  std::string key_;                   // the last one outside of a part
  Json part_;
  std::vector<Json*> parents_;  // the open containers of the part
  Json* place_ = nullptr;       // of the value after a key
  const TakeJsonPart& take_;
  Status status_;
};

// The pieces as a stream.
class PieceBuffer : public std::streambuf {
 public:
  PieceBuffer(const JsonPieces& next, PartReader* reader) : next_(next), reader_(*reader) {}
  const Status& status() const { return status_; }

 private:
  int_type underflow() override {
    if (!status_.ok()) return traits_type::eof();
    const Result<std::string_view> piece = next_();
    status_ = piece.status();
    if (!piece.ok() || piece->empty() || !reader_.Count(piece->size())) return traits_type::eof();
    // A stream can also be written to; this one is not.
    char* begin = const_cast<char*>(piece->data());
    setg(begin, begin, begin + piece->size());
    return traits_type::to_int_type(*begin);
  }

  const JsonPieces& next_;
  PartReader& reader_;
  Status status_;
};

constexpr std::string_view kPythonWords[] = {"NaN", "-Infinity", "Infinity"};

// With those words, outside of strings, as strings.
std::string WithoutPythonWords(std::string_view text) {
  std::string json;
  bool in_string = false;
  for (size_t at = 0; at < text.size();) {
    size_t length = 1;
    if (!in_string) {
      for (const std::string_view word : kPythonWords) {
        if (!text.substr(at).starts_with(word)) continue;
        json += fmt::format("\"\\u{:04x}{}\"", static_cast<int>(kNoJson), word);
        at += word.size();
        length = 0;
        break;
      }
    } else if (text[at] == '\\') {
      length = 2;
    }
    if (length == 0) continue;
    if (text[at] == '"') in_string = !in_string;
    json += text.substr(at, length);
    at += length;
  }
  return json;
}

// Discarded where it is no JSON.
Result<Json> ParseWhole(std::string_view text) {
  Json root(Type::discarded);
  const TakeJsonPart take = [&root](JsonPart part) {
    root = std::move(part.value);
    return Status();
  };
  PartReader reader(take);
  const bool whole = Json::sax_parse(text, &reader);
  PP_RETURN_IF_ERROR(reader.status());
  if (!whole) return Json(Type::discarded);
  return root;
}

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  Result<Json> root = ParseWhole(text);
  if (!root.ok() || !root->is_discarded()) return root;
  const bool python = text.find(kPythonWords[0]) != std::string_view::npos ||
                      text.find(kPythonWords[2]) != std::string_view::npos;
  return python ? ParseWhole(WithoutPythonWords(text)) : root;
}

std::string DumpJson(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  for (const std::string_view word : kPythonWords) {
    const std::string written = fmt::format("\"\\u{:04x}{}\"", static_cast<int>(kNoJson), word);
    for (size_t at = 0; (at = text.find(written, at)) != std::string::npos; at += word.size())
      text.replace(at, written.size(), word);
  }
  return text;
}

Result<bool> ForEachJsonPart(std::string_view text, const JsonContainer& container,
                             const TakeJsonPart& take) {
  PartReader reader(container, take);
  const bool whole = Json::sax_parse(text, &reader);
  PP_RETURN_IF_ERROR(reader.status());
  return whole && reader.found();
}

Result<bool> ForEachJsonPart(const JsonPieces& next, const JsonContainer& container,
                             const TakeJsonPart& take) {
  PartReader reader(container, take);
  PieceBuffer pieces(next, &reader);
  std::istream in(&pieces);
  const bool whole = Json::sax_parse(in, &reader);
  PP_RETURN_IF_ERROR(pieces.status());
  PP_RETURN_IF_ERROR(reader.status());
  return whole && reader.found();
}

}  // namespace pp
