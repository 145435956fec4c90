#include "runtime/files/safetensors.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

namespace pp {
namespace {

// A file in the test's own directory, removed at the end.
class File {
 public:
  explicit File(const std::string& bytes) { std::ofstream(kName, std::ios::binary) << bytes; }
  ~File() { std::remove(kName); }
  static constexpr char kName[] = "safetensors_test.tmp";
};

std::string Length(uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  return bytes;
}

std::string Bytes(const std::string& header, size_t data) {
  return Length(header.size()) + header + std::string(data, '\0');
}

// The error of a file with this header and `data` bytes of data.
std::string Error(const std::string& header, size_t data) {
  const File file(Bytes(header, data));
  const Result<Safetensors> result = Safetensors::Open(File::kName);
  return result.ok() ? "ok" : result.status().message();
}

constexpr char kA[] = R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
constexpr char kB[] = R"("b":{"dtype":"I32","shape":[],"data_offsets":[24,28]})";

TEST_CASE("a file with two tensors is read") {
  const float numbers[] = {1, 2, 3, 4, 5, 6};
  const int32_t seven = 7;
  std::string bytes =
      Bytes("{" + std::string(kA) + "," + kB + R"(,"__metadata__":{"x":"y"}}   )", 0);
  bytes.append(reinterpret_cast<const char*>(numbers), 24);
  bytes.append(reinterpret_cast<const char*>(&seven), 4);
  const File file(bytes);
  Result<Safetensors> result = Safetensors::Open(File::kName);
  REQUIRE(result.ok());
  float a[6] = {};
  int32_t b = 0;
  CHECK(result->ReadFloats("a", {2, 3}, a).ok());
  CHECK(result->ReadInts("b", {}, &b).ok());
  CHECK(a[5] == 6);
  CHECK(b == 7);
  CHECK(result->ReadFloats("a", {3, 2}, a).message() ==
        "safetensors_test.tmp: tensor a has the shape [2, 3] (the model's is [3, 2])");
  CHECK(result->ReadFloats("b", {}, a).message() ==
        "safetensors_test.tmp: tensor b is I32 (F32 is read)");
  CHECK(result->ReadFloats("c", {}, a).message() == "safetensors_test.tmp: tensor c is missing");
}

TEST_CASE("a damaged file is an error") {
  const std::string a = kA, b = kB;
  CHECK(Error("{" + a + "}", 24) == "ok");
  CHECK(Error("{" + a + "}", 23) ==
        "safetensors_test.tmp: has 23 bytes of data (24 by its header)");
  CHECK(Error("{" + a + "," + a + "}", 24) == "safetensors_test.tmp: tensor a occurs twice");
  CHECK(Error("{" + b + "}", 28) ==
        "safetensors_test.tmp: a tensor begins at byte 24 of the data (0 would be right)");
  CHECK(Error("{" + a + R"(,"c":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}})", 28) ==
        "safetensors_test.tmp: a tensor begins at byte 12 of the data (24 would be right)");
  CHECK(Error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4) ==
        "safetensors_test.tmp: tensor a of shape [2] and dtype F32 is in bytes 0 to 4");
  CHECK(Error(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0)
            .find("is not described") != std::string::npos);
  CHECK(Error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0)
            .find("is in bytes 0 to 0") != std::string::npos);
  CHECK(Error(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4) ==
        "safetensors_test.tmp: tensor a is not described by dtype, shape and data_offsets");
  CHECK(Error(R"({"a":3})", 0) ==
        "safetensors_test.tmp: tensor a is not described by dtype, shape and data_offsets");
  CHECK(Error("[]", 0) == "safetensors_test.tmp: the header is not a JSON object");
  CHECK(Error("{", 0) == "safetensors_test.tmp: the header is not a JSON object");
  const File file(Length(1000) + "{}");
  CHECK(Safetensors::Open(File::kName).status().message() ==
        "safetensors_test.tmp: has 10 bytes and says its header has 1000 (a safetensors file)");
  CHECK(Safetensors::Open("no/such").status().message() ==
        "no/such: cannot be read: No such file or directory (a safetensors file)");
  CHECK(Safetensors::Open(".").status().message() == ".: is a directory (a safetensors file)");
  REQUIRE(mkfifo("safetensors_test.fifo", 0600) == 0);
  CHECK(Safetensors::Open("safetensors_test.fifo").status().message() ==
        "safetensors_test.fifo: is not a regular file (a safetensors file)");
  std::remove("safetensors_test.fifo");
}

// Its size is not known, but where it is must be right.
TEST_CASE("a tensor of an unknown type is an error where it is read") {
  for (const std::string dtype : {"F31", "F8_E8M0", "F4", "C64"}) {
    const std::string odd =
        R"("b":{"dtype":")" + dtype + R"(","shape":[9],"data_offsets":[24,29]})";
    const std::string header = "{" + std::string(kA) + "," + odd + "}";
    CHECK(Error(header, 29) == "ok");
    CHECK(Error(header, 28) == "safetensors_test.tmp: has 28 bytes of data (29 by its header)");
    for (const char* range : {"[23,29]", "[25,29]", "[29,24]", "[24,30]"}) {
      std::string wrong = header;
      CHECK(Error(wrong.replace(wrong.find("[24,29]"), 7, range), 29) != "ok");
    }
    const File file(Bytes(header, 29));
    Result<Safetensors> result = Safetensors::Open(File::kName);
    REQUIRE(result.ok());
    float out[9] = {};
    CHECK(result->ReadFloats("a", {2, 3}, out).ok());
    CHECK(result->ReadFloats("b", {9}, {.rows = 1, .cols = 9, .row_stride = 9}, out).message() ==
          "safetensors_test.tmp: tensor b is " + dtype + " (F32 or BF16 or F16 is read)");
  }
}

TEST_CASE("a file that is cut anywhere is an error") {
  const std::string bytes = Bytes("{" + std::string(kA) + "}", 24);
  for (size_t n = 0; n < bytes.size(); ++n) {
    const File file(bytes.substr(0, n));
    CHECK_FALSE(Safetensors::Open(File::kName).ok());
  }
}

}  // namespace
}  // namespace pp
