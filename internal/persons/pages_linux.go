package persons

import (
	"syscall"
	"unsafe"
)

// inLargePages asks the system to keep a table in pages of 2 MiB. A table of a million persons is read at random
// places, and with pages of 4 KiB nearly every read also walks the page tables. If the system refuses, the table stays
// in small pages and is only slower.
func inLargePages(slots []slot) {
	const page = 2 << 20
	table := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(slots))), len(slots)*slotBytes)
	first := -uintptr(unsafe.Pointer(unsafe.SliceData(table))) % page
	if size := uintptr(len(table)); first+page <= size {
		whole := (size - first) / page * page
		_ = syscall.Madvise(table[first:first+whole], syscall.MADV_HUGEPAGE)
	}
}
