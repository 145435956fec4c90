#include "schema/base/status.h"

#include <catch2/catch.hpp>

TEST_CASE("a status says where it comes from") {
  const pp::Status status = pp::Status::Invalid("not a plan").In("x.plan");
  CHECK(status.message() == "x.plan: not a plan");
  CHECK(status.code() == pp::Code::kInvalid);
  CHECK(status.In(std::string(300, 'x')).message() ==
        std::string(197, 'x') + "...: x.plan: not a plan");
}

TEST_CASE("of a foreign text an error shows 200 characters, all of them visible") {
  using pp::Shown;
  CHECK(Shown("") == "");
  CHECK(Shown("a b") == "a b");
  CHECK(Shown(std::string(200, 'x')) == std::string(200, 'x'));
  CHECK(Shown(std::string(201, 'x')) == std::string(197, 'x') + "...");
  CHECK(Shown("\n\t\x1b[1m\x7f") == "\\n\\x09\\x1b[1m\\x7f");
  CHECK(Shown(std::string(1, '\0')) == "\\x00");
  // What is written out is never cut, and counts as it is shown.
  CHECK(Shown(std::string(50, '\x01')).size() == 200);
  CHECK(Shown(std::string(51, '\x01')).size() == 4 * 49 + 3);
  // UTF-8 stays, as one character; what is none does not, nor what hides its neighbours.
  CHECK(Shown("Grüße, 世界 …") == "Grüße, 世界 …");
  std::string letters;
  for (int i = 0; i < 201; ++i) letters += "ü";
  CHECK(Shown(letters) == letters.substr(0, 2 * 197) + "...");
  CHECK(Shown("\xff\x80") == "\\xff\\x80");
  CHECK(Shown("\xc3") == "\\xc3");
  CHECK(Shown("\xc0\xaf") == "\\xc0\\xaf");           // a slash, too long
  CHECK(Shown("\xc2\x9b") == "\\xc2\\x9b");           // a control character
  CHECK(Shown("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half of a pair
  CHECK(Shown("\xe2\x80\xae") == "\\xe2\\x80\\xae");  // from right to left
  CHECK(Shown("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
}

TEST_CASE("a message is one line whose words are shown") {
  CHECK(pp::OneLine("x: 'a  b'\n (c)") == "x: 'a  b'\\n (c)");
  CHECK(pp::OneLine("x: " + std::string(300, 'y') + " (z)") ==
        "x: " + std::string(197, 'y') + "... (z)");
  std::string words;
  for (int i = 0; i < 100000; ++i) words += "word ";
  CHECK(pp::OneLine(words).size() == 2000);
}
