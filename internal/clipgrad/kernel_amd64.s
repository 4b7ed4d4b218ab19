#include "textflag.h"

// 1.5·2⁵², which rounds to an integer what it is added to and subtracted from.
DATA magic<>+0(SB)/8, $0x4338000000000000
GLOBL magic<>(SB), RODATA|NOPTR, $8
// All bits but the sign.
DATA magnitude<>+0(SB)/8, $0x7FFFFFFFFFFFFFFF
GLOBL magnitude<>(SB), RODATA|NOPTR, $8

// func addPairs(lanes, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64)
TEXT ·addPairs(SB), NOSPLIT, $0-88
	MOVQ lanes+0(FP), DI
	MOVQ e+8(FP), R8
	MOVQ y+16(FP), R10
	MOVQ norm+24(FP), R11
	MOVQ u+32(FP), R12
	MOVQ dim+40(FP), R13
	MOVQ pairs+48(FP), DX
	VBROADCASTSD quotient+56(FP), Y10
	VBROADCASTSD top+64(FP), Y11
	VBROADCASTSD limit+72(FP), Y12
	VBROADCASTSD magic<>(SB), Y13
	VBROADCASTSD magnitude<>(SB), Y14
	VXORPD Y15, Y15, Y15
	MOVQ R13, SI
	SHLQ $5, SI // bytes of a group
	JMP test

pair:
	// Y0, Y1: the products of the rows of two groups with u.
	LEAQ (R8)(SI*1), R9
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	XORQ BX, BX
	XORQ CX, CX

product:
	VBROADCASTSD (R12)(CX*8), Y2
	VMULPD (R8)(BX*1), Y2, Y3
	VMULPD (R9)(BX*1), Y2, Y4
	VADDPD Y3, Y0, Y0
	VADDPD Y4, Y1, Y1
	ADDQ $32, BX
	INCQ CX
	CMPQ CX, R13
	JLT product

	// Y0, Y1 become their weights, and Y15 counts, as in pass.weight and pass.counts.
	VMOVUPD (R11), Y8
	VMOVUPD 32(R11), Y9
	VMULPD Y0, Y8, Y2
	VMULPD Y1, Y9, Y3
	VMOVUPD (R10), Y4
	VMOVUPD 32(R10), Y5
	VSUBPD Y2, Y4, Y4
	VSUBPD Y3, Y5, Y5
	VMULPD Y8, Y4, Y4
	VMULPD Y9, Y5, Y5
	VMULPD Y10, Y4, Y4
	VMULPD Y10, Y5, Y5
	VANDPD Y14, Y4, Y2
	VANDPD Y14, Y5, Y3
	VANDNPD Y4, Y14, Y4 // signs
	VANDNPD Y5, Y14, Y5
	VMINPD Y2, Y11, Y2
	VMINPD Y3, Y11, Y3
	VADDPD Y13, Y2, Y2
	VADDPD Y13, Y3, Y3
	VSUBPD Y13, Y2, Y2
	VSUBPD Y13, Y3, Y3
	VORPD Y4, Y2, Y0
	VORPD Y5, Y3, Y1
	VSUBPD Y12, Y2, Y2
	VSUBPD Y12, Y3, Y3
	VANDNPD Y2, Y8, Y2
	VANDNPD Y3, Y9, Y3
	VPSRLQ $63, Y2, Y2
	VPSRLQ $63, Y3, Y3
	VPADDQ Y2, Y15, Y15
	VPADDQ Y3, Y15, Y15

	// lanes += columns times weights.
	XORQ BX, BX

add:
	VMULPD (R8)(BX*1), Y0, Y2
	VMULPD (R9)(BX*1), Y1, Y3
	VADDPD Y3, Y2, Y2
	VADDPD (DI)(BX*1), Y2, Y2
	VMOVUPD Y2, (DI)(BX*1)
	ADDQ $32, BX
	CMPQ BX, SI
	JLT add

	ADDQ $64, R10
	ADDQ $64, R11
	LEAQ (R9)(SI*1), R8
	DECQ DX

test:
	TESTQ DX, DX
	JNE pair
	VEXTRACTI128 $1, Y15, X0
	VPADDQ X0, X15, X0
	VPSHUFD $0xEE, X0, X1
	VPADDQ X1, X0, X0
	VMOVQ X0, AX
	VZEROUPPER
	MOVQ AX, counted+80(FP)
	RET
