#include "worker/engine/weights/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace sft::engine {

namespace {

c10::impl::VirtualGuardImpl Guard(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

SideStream::SideStream(at::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = Guard(device).getStreamFromGlobalPool(device);
  started_.emplace(device.type());
  done_.emplace(device.type());
}

SideStream::Scope::Scope(SideStream& side)
    : side_(side), main_(Guard(side.device_).getStream(side.device_)) {
  side.started_->record(main_);
  side.started_->block(*side.stream_);
  Guard(side.device_).exchangeStream(*side.stream_);
}

SideStream::Scope::~Scope() {
  side_.done_->record(*side_.stream_);
  Guard(side_.device_).exchangeStream(main_);
}

void SideStream::Join() { done_->block(Guard(device_).getStream(device_)); }

}  // namespace sft::engine
