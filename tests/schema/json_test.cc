// What ParseJson and ForEachJsonPart read is what nlohmann's own parser reads, in a time that grows
// with the text and no faster.
#include "schema/base/json.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <ctime>
#include <iterator>
#include <utility>

#include "tests/fuzz/mutate.h"

namespace pp {
namespace {

using Json = nlohmann::json;

// As the library parses it, with a callback that watches the depth. (It looks through all of an
// array at the end of each of its objects.)
struct Expected {
  Json value;
  bool deep = false;
};
Expected Reference(const std::string& text) {
  Expected expected;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    expected.deep |= depth > kMostJsonDepth;
    return !expected.deep;
  };
  expected.value = Json::parse(text, watch, /*allow_exceptions=*/false);
  return expected;
}

std::string AnyValue(Random& random, int depth) {
  constexpr const char* kLeaves[] = {"null", "true",   "-7",        "18446744073709551615",
                                     "0.5",  "1e400",  "\"\"",      "\"a\\u00e9\\n\"",
                                     "1e-5", "\"\xff", "123456789", "[]",
                                     "{}",   "-0"};
  if (depth <= 0 || random.OneIn(4)) return kLeaves[random.Below(std::size(kLeaves))];
  const bool object = random.OneIn(2);
  std::string text = object ? "{" : "[";
  for (int i = random.Below(5); i > 0; --i) {
    // Few names, so that some occur twice.
    if (object) text += fmt::format("\"{}\":", "abcd"[random.Below(4)]);
    text += AnyValue(random, depth - 1) + (i > 1 ? ", " : "");
  }
  return text + (object ? "}" : "]");
}

std::string AnyText(Random& random) {
  std::string text = AnyValue(random, 5);
  if (random.OneIn(8)) {
    const int around = 60 + random.Below(10);
    const bool object = random.OneIn(2);
    for (int i = 0; i < around; ++i) text = object ? "{\"a\":" + text + "}" : "[" + text + "]";
  }
  for (int i = random.OneIn(2) ? random.Below(3) : 0; i > 0 && !text.empty(); --i) {
    const size_t at = random.Below(text.size());
    if (random.OneIn(2)) {
      text.erase(at, 1 + random.Below(3));
    } else {
      text.insert(at, 1, "[]{},:\"0e-\\ \x80"[random.Below(13)]);
    }
  }
  return text;
}

// Piece by piece, each of a few bytes.
JsonPieces InPieces(std::string_view text, Random& random) {
  return [text, &random]() mutable -> Result<std::string_view> {
    const std::string_view piece = text.substr(0, 1 + random.Below(5));
    text.remove_prefix(piece.size());
    return piece;
  };
}

TEST_CASE("what is read is what nlohmann's parser reads") {
  Random random(1);
  int deep = 0, right = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::string text = AnyText(random);
    const Expected expected = Reference(text);
    const auto parsed = ParseJson(text);
    INFO(text);
    REQUIRE(parsed.ok() == !expected.deep);
    deep += expected.deep ? 1 : 0;
    if (!parsed.ok()) continue;
    REQUIRE(parsed->is_discarded() == expected.value.is_discarded());
    if (parsed->is_discarded()) continue;
    ++right;
    REQUIRE(*parsed == expected.value);
  }
  CHECK(deep > 500);
  CHECK(right > 10'000);
}

TEST_CASE("the parts are the values of the container") {
  Random random(2);
  int some = 0, twice = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::string text = AnyText(random);
    const JsonContainer container{random.OneIn(2) ? "" : "a",
                                  random.OneIn(2) ? Json::value_t::object : Json::value_t::array};
    const bool outermost = container.member.empty();
    INFO(text << " " << container.member << " " << (container.type == Json::value_t::array));
    const auto parsed = ParseJson(text);
    const Json* expected = nullptr;  // the container
    if (parsed.ok() && parsed->is_object())
      expected = outermost ? &*parsed : parsed->contains("a") ? &(*parsed)["a"] : nullptr;
    if (expected != nullptr && expected->type() != container.type) expected = nullptr;
    Json found = Json(container.type);
    size_t count = 0;
    const auto take = [&](const JsonPart& part) -> Status {
      REQUIRE(part.index == count++);
      if (container.type == Json::value_t::object) {
        found[part.key] = part.value;
      } else {
        found.push_back(part.value);
      }
      return {};
    };
    const auto whole = random.OneIn(2) ? ForEachJsonPart(text, container, take)
                                       : ForEachJsonPart(InPieces(text, random), container, take);
    if (!whole.ok() && whole.status().message() == "a occurs twice") {
      ++twice;
      continue;
    }
    REQUIRE(whole.ok() == parsed.ok());
    if (!whole.ok()) continue;
    REQUIRE(*whole == (expected != nullptr));
    if (expected == nullptr) continue;
    REQUIRE(found == *expected);
    some += count > 0 ? 1 : 0;
  }
  CHECK(some > 500);
  CHECK(twice > 100);
}

TEST_CASE("the first error of a call is the last call") {
  int calls = 0;
  const auto fails = [&](const JsonPart& part) {
    ++calls;
    return part.index == 1 ? Status::Failed("no more") : Status();
  };
  const auto read = ForEachJsonPart(R"({"a":[1,2,3]})", {"a", Json::value_t::array}, fails);
  CHECK(read.status().message() == "no more");
  CHECK(calls == 2);
}

// The error of an array whose second value begins like that and goes on with `rest` for ever.
std::string ErrorOf(const std::string& begin, const std::string& rest) {
  const std::string first = R"({"a":[1,)" + begin;
  bool begun = false;
  const JsonPieces next = [&]() -> Result<std::string_view> {
    return std::string_view(std::exchange(begun, true) ? rest : first);
  };
  const auto ignore = [](const JsonPart&) { return Status(); };
  return ForEachJsonPart(next, {"a", Json::value_t::array}, ignore).status().message();
}

TEST_CASE("many parts may have more bytes together") {
  const std::string value = "\"" + std::string(1 << 20, 'x') + "\",";
  size_t sent = 0, count = 0;
  const JsonPieces next = [&]() -> Result<std::string_view> {
    const std::string_view all[] = {R"({"a":[)", value, "0]}", ""};
    const size_t which = sent < 1 ? 0 : sent < 120 ? 1 : sent < 121 ? 2 : 3;
    ++sent;
    return all[which];
  };
  const auto take = [&](const JsonPart&) { return ++count, Status(); };
  const auto whole = ForEachJsonPart(next, {"a", Json::value_t::array}, take);
  INFO(whole.status().message());
  REQUIRE(whole.ok());
  CHECK(*whole);
  CHECK(count == 120);
}

TEST_CASE("a part is bounded, and so is what lies between two parts") {
  const std::string letters(1 << 20, 'x'), bytes = "a value of more than 104857600 bytes";
  CHECK(ErrorOf("\"", letters) == bytes);
  CHECK(ErrorOf("1],\"b\":\"", letters) == bytes);
  CHECK(ErrorOf("[0", ",0") == "a value with more than 1048576 in it");
}

// A parser that looks through all elements at the end of each takes minutes.
TEST_CASE("a million elements take no longer each than a thousand") {
  std::string array = R"([{"a":0})", object = R"({"0":{})";
  for (int i = 1; i < 1'000'000; ++i) array += R"(,{"a":0})";
  for (int i = 1; i < 300'000; ++i) object += fmt::format(R"(,"{}":{{}})", i);
  array += "]", object += "}";
  constexpr double kMostSeconds = 30;  // 0.4 s are usual, and 5 with a sanitizer
  const auto begin = std::clock();
  const auto parsed = ParseJson(array);
  REQUIRE(parsed.ok());
  CHECK(parsed->size() == 1'000'000);
  REQUIRE(ParseJson(object).ok());
  size_t count = 0;
  const auto take = [&](const JsonPart&) { return ++count, Status(); };
  for (const auto& [text, container] :
       {std::pair(object, JsonContainer{}),
        std::pair(R"({"a":)" + array + "}", JsonContainer{"a", Json::value_t::array})}) {
    const auto whole = ForEachJsonPart(text, container, take);
    REQUIRE(whole.ok());
    CHECK(*whole);
  }
  CHECK(count == 1'300'000);
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < kMostSeconds);
}

}  // namespace
}  // namespace pp
