#include "worker/engine/weights/side_stream.h"

namespace sft::engine {

SideStream::SideStream(at::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = StreamsOf(device).getStreamFromGlobalPool(device);
  started_.emplace(device.type());
  done_.emplace(device.type());
}

SideStream::Scope::Scope(SideStream& side) : side_(side) {
  if (!side.available()) return;
  main_ = StreamsOf(side.device_).getStream(side.device_);
  side.started_->record(*main_);
  side.started_->block(*side.stream_);
  StreamsOf(side.device_).exchangeStream(*side.stream_);
}

SideStream::Scope::~Scope() {
  if (!main_) return;
  side_.done_->record(*side_.stream_);
  StreamsOf(side_.device_).exchangeStream(*main_);
}

void SideStream::Join() {
  if (available()) done_->block(StreamsOf(device_).getStream(device_));
}

}  // namespace sft::engine
