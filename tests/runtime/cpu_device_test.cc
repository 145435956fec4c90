// The CPU's queues: what is submitted is done, sums are taken in order.
#include "runtime/device/cpu_device.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

namespace pp {
namespace {

std::byte* Bytes(std::vector<float>& numbers) {
  return reinterpret_cast<std::byte*>(numbers.data());
}

struct Parts {
  Parts(int count, int64_t n) : parts(count, std::vector<float>(n)) {
    // Of very different sizes, so that another order gives other bits.
    std::mt19937 random(count * 1000 + static_cast<unsigned>(n));
    std::uniform_real_distribution<float> number(-1, 1);
    for (auto& part : parts)
      for (float& x : part) x = std::ldexp(number(random), static_cast<int>(random() % 24));
    for (auto& part : parts) pointers.push_back(Bytes(part));
  }

  std::vector<float> InOrder() const {
    std::vector<float> sum = parts[0];
    for (size_t p = 1; p < parts.size(); ++p)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + parts[p][i];
    return sum;
  }

  std::vector<std::vector<float>> parts;
  std::vector<const std::byte*> pointers;
};

}  // namespace

TEST_CASE("a sum of any number of parts of any size is taken in their order") {
  const auto device = MakeCpuDevice();
  for (const int count : {1, 2, 3, 7, 16})
    for (const int64_t n : {0, 1, 2047, 2048, 2049, 5001}) {
      INFO(count << " parts of " << n);
      const Parts parts(count, n);
      std::vector<float> out(n, -1);
      const Ticket ticket =
          device->reduce().Sum({.n = n, .parts = parts.pointers, .out = Bytes(out)});
      CHECK(device->reduce().Done(ticket));
      CHECK(out == parts.InOrder());
    }
  Parts parts(5, 100);
  const std::vector<float> right = parts.InOrder();
  std::swap(parts.pointers[1], parts.pointers[4]);
  std::vector<float> out(100);
  device->reduce().Sum({.n = 100, .parts = parts.pointers, .out = Bytes(out)});
  CHECK(out != right);
}

TEST_CASE("a sum may go where one of its parts is") {
  const auto device = MakeCpuDevice();
  for (const int count : {1, 2, 5})
    for (int which = 0; which < count; ++which) {
      Parts parts(count, 3001);
      const std::vector<float> right = parts.InOrder();
      device->compute().Sum({.n = 3001, .parts = parts.pointers, .out = Bytes(parts.parts[which])});
      INFO("into part " << which << " of " << count);
      CHECK(parts.parts[which] == right);
    }
  Parts parts(2, 3001);
  const std::vector<float> right = parts.InOrder();
  device->compute().Sum({.n = 3001,
                         .parts = parts.pointers,
                         .out = Bytes(parts.parts[0]),
                         .also = Bytes(parts.parts[1])});
  CHECK(parts.parts[0] == right);
  CHECK(parts.parts[1] == right);
}

// 1 + 1/256 is halfway between two bfloat16s, and 1 is the even one.
TEST_CASE("a sum of bfloat16 is rounded once") {
  const auto device = MakeCpuDevice();
  constexpr uint16_t kOne = 0x3f80, kHalfUnit = 0x3b80, kNext = 0x3f81;
  const std::vector<uint16_t> one(37, kOne), half(37, kHalfUnit);
  std::vector<uint16_t> out(37), also(37);
  const auto* a = reinterpret_cast<const std::byte*>(one.data());
  const auto* b = reinterpret_cast<const std::byte*>(half.data());
  const auto sum = [&](const std::vector<const std::byte*>& parts) {
    device->reduce().Sum({.dtype = Dtype::kBf16,
                          .n = 37,
                          .parts = parts,
                          .out = reinterpret_cast<std::byte*>(out.data()),
                          .also = reinterpret_cast<std::byte*>(also.data())});
    CHECK(out == also);
  };
  sum({a, b});
  CHECK(out == one);
  sum({a, b, b});
  CHECK(out == std::vector<uint16_t>(37, kNext));
}

TEST_CASE("copies in and out, and tickets that count") {
  const auto device = MakeCpuDevice();
  REQUIRE(device->Allocate(4096).ok());
  CHECK(device->compute().last() == 0);
  CHECK(device->compute().Done(0));
  const std::vector<char> bytes = {'a', 'b', 'c', 'd', 'e', 'f', 'g'};
  std::vector<char> host = bytes, back(7);
  CHECK(device->compute().CopyIn(device->at(1024), host.data(), 7) == 1);
  std::fill(host.begin(), host.end(), '.');  // it is the caller's again
  CHECK(device->compute().CopyOut(back.data(), device->at(1024), 7) == 2);
  CHECK(device->compute().last() == 2);
  CHECK(device->compute().Done(2));
  CHECK(device->reduce().last() == 0);  // has its own count
  CHECK(back == bytes);
  CHECK(device->HighWater() == 1024 + 8);  // up to the end of a value
  device->Finish();
  CHECK(device->status().ok());
}

TEST_CASE("what a stage computes is done when it is submitted") {
  struct Executor : StageExecutor {
    void Run(const StageCall& call) override { micros.push_back(call.micro); }
    std::vector<int> micros;
  } executor;
  const auto device = MakeCpuDevice();
  for (int m = 0; m < 3; ++m) {
    StageCall call;
    call.micro = m;
    CHECK(device->compute().Done(device->compute().Submit(executor, call)));
  }
  CHECK(executor.micros == std::vector<int>{0, 1, 2});
}

TEST_CASE("stamps stand in the queue's order, and what is between them was work") {
  const auto device = MakeCpuDevice();
  double begin = 0, end = 0;
  const Parts parts(4, 5000);
  std::vector<float> out(5000);
  CHECK(device->reduce().Done(device->reduce().Stamp(&begin)));
  device->reduce().Sum({.n = 5000, .parts = parts.pointers, .out = Bytes(out)});
  CHECK(device->reduce().Done(device->reduce().Stamp(&end)));
  CHECK(begin > 0);
  CHECK(begin <= end);
  CHECK(device->compute().time().busy == 0);
}

TEST_CASE("more memory than there is") {
  CHECK(MakeCpuDevice()->Allocate(int64_t{1} << 60).code() == Code::kInvalid);
  CHECK(MakeCpuDevice()->HighWater() == 0);
}

}  // namespace pp
