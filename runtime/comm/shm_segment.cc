#include "runtime/comm/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace pp {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kRing = ShmChannel::kPieces * ShmChannel::kPieceBytes;

int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Status Error(const std::string& name, int error) {
  return Status::Failed(fmt::format("/dev/shm{}: {} (a larger /dev/shm, or --transport mpi)", name,
                                    std::strerror(error)));
}

// Allocates the memory now: otherwise touching a page that cannot be allocated would kill the
// process.
int Take(int file, int64_t offset, int64_t bytes) {
  int error = 0;
  do {
    error = posix_fallocate(file, offset, bytes);
  } while (error == EINTR);
  return error;
}

}  // namespace

ShmSegment::Layout::Layout(int count) {
  const int64_t all = int64_t{kChannels} * count * count;
  members = 64;
  channels = members + count * static_cast<int64_t>(sizeof(ShmMember));
  pieces = RoundUp(channels + all * static_cast<int64_t>(sizeof(ShmChannel)));
  bytes = pieces + all * kRing;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(int members) {
  const Layout layout(members);
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) return Error("", errno);
  const std::string name = fmt::format("/piperun-{:016x}", number);
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return Error(name, errno);
  std::shared_ptr<ShmSegment> segment(new ShmSegment(name, file));
  segment->linked_ = true;
  if (ftruncate(file, layout.bytes) != 0) return Error(name, errno);
  if (const int error = Take(file, 0, layout.pieces)) return Error(name, error);
  PP_RETURN_IF_ERROR(segment->Map(members));
  auto* head = new (segment->memory_) Head{members, {}};
  PP_CHECK(sizeof *head <= static_cast<size_t>(layout.members));
  for (int member = 0; member < members; ++member) new (&segment->MemberAt(member)) ShmMember;
  for (int64_t i = 0; i < int64_t{kChannels} * members * members; ++i)
    new (segment->memory_ + layout.channels + i * sizeof(ShmChannel)) ShmChannel;
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Open(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (file < 0) return Error(name, errno);
  std::shared_ptr<ShmSegment> segment(new ShmSegment(name, file));
  Head head{};
  if (pread(file, &head.members, sizeof head.members, 0) != sizeof head.members)
    return Error(name, errno);
  PP_RETURN_IF_ERROR(segment->Map(head.members));
  return segment;
}

Status ShmSegment::Map(int members) {
  layout_ = Layout(members);
  void* memory = mmap(nullptr, layout_.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) return Error(name_, errno);
  memory_ = static_cast<char*>(memory);
  return {};
}

ShmSegment::~ShmSegment() {
  if (memory_ != nullptr) munmap(memory_, layout_.bytes);
  Unlink();
  close(file_);
}

void ShmSegment::Unlink() {
  if (linked_) shm_unlink(name_.c_str());
  linked_ = false;
}

ShmMember& ShmSegment::MemberAt(int member) const {
  return reinterpret_cast<ShmMember*>(memory_ + layout_.members)[member];
}

ShmChannel& ShmSegment::ChannelOf(Channel channel, int from, int to) const {
  return reinterpret_cast<ShmChannel*>(memory_ + layout_.channels)[IndexOf(channel, from, to)];
}

char* ShmSegment::PieceOf(Channel channel, int from, int to, uint64_t number) const {
  return memory_ + layout_.pieces + IndexOf(channel, from, to) * kRing +
         static_cast<int64_t>(number % ShmChannel::kPieces) * ShmChannel::kPieceBytes;
}

Status ShmSegment::Reserve(Channel channel, int from, int to) const {
  const int error = Take(file_, PieceOf(channel, from, to, 0) - memory_, kRing);
  return error == 0 ? Status() : Error(name_, error);
}

}  // namespace pp
