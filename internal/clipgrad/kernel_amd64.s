#include "textflag.h"

// 1.5·2⁵². Adding it to a number and subtracting it rounds the number to an integer. After the
// addition, the integer is in the low bits.
DATA magic<>+0(SB)/8, $0x4338000000000000
GLOBL magic<>(SB), RODATA|NOPTR, $8
// All bits except the sign.
DATA magnitude<>+0(SB)/8, $0x7FFFFFFFFFFFFFFF
GLOBL magnitude<>(SB), RODATA|NOPTR, $8

// WEIGHTS computes the weights of a group's rows from s0 and s1, the products of the rows with u:
// eight integers of 32 bits in w. It also adds to the counts in Y15. Both are as in pass.weight and
// pass.counts. at is the position of the group's first y and norm. A product that is not a number
// gets the largest weight. The integers take their signs from the upper halves of the numbers: if
// such a half is 0, so is the integer. WEIGHTS uses Y4 … Y9.
#define WEIGHTS(s0, s1, w, at) \
	VMOVUPD at(R11), Y8 \
	VMOVUPD at+32(R11), Y9 \
	VMULPD s0, Y8, Y4 \
	VMULPD s1, Y9, Y5 \
	VMOVUPD at(R10), Y6 \
	VMOVUPD at+32(R10), Y7 \
	VSUBPD Y4, Y6, Y6 \
	VSUBPD Y5, Y7, Y7 \
	VMULPD Y8, Y6, Y6 \
	VMULPD Y9, Y7, Y7 \
	VMULPD Y10, Y6, Y6 \
	VMULPD Y10, Y7, Y7 \
	VANDPD Y14, Y6, Y4 \
	VANDPD Y14, Y7, Y5 \
	VMINPD Y11, Y4, Y4 \
	VMINPD Y11, Y5, Y5 \
	VADDPD Y13, Y4, Y4 \
	VADDPD Y13, Y5, Y5 \
	VSHUFPS $0xDD, Y7, Y6, Y6 \
	VSHUFPS $0x88, Y5, Y4, w \
	VPSIGND Y6, w, w \
	VPERMQ $0xD8, w, w \
	VPCMPGTQ Y4, Y12, Y4 \
	VPCMPGTQ Y5, Y12, Y5 \
	VANDNPD Y4, Y8, Y4 \
	VANDNPD Y5, Y9, Y5 \
	VPSRLQ $63, Y4, Y4 \
	VPSRLQ $63, Y5, Y5 \
	VPADDQ Y4, Y15, Y15 \
	VPADDQ Y5, Y15, Y15

// func addPairs(lanes *int64, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64)
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
	// Y0 … Y3: the products of the rows of two groups with u.
	LEAQ (R8)(SI*1), R9
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	VXORPD Y2, Y2, Y2
	VXORPD Y3, Y3, Y3
	XORQ BX, BX
	XORQ CX, CX

product:
	VBROADCASTSD (R12)(CX*8), Y4
	VCVTDQ2PD (R8)(BX*1), Y5
	VCVTDQ2PD 16(R8)(BX*1), Y6
	VCVTDQ2PD (R9)(BX*1), Y7
	VCVTDQ2PD 16(R9)(BX*1), Y8
	VMULPD Y4, Y5, Y5
	VMULPD Y4, Y6, Y6
	VMULPD Y4, Y7, Y7
	VMULPD Y4, Y8, Y8
	VADDPD Y5, Y0, Y0
	VADDPD Y6, Y1, Y1
	VADDPD Y7, Y2, Y2
	VADDPD Y8, Y3, Y3
	ADDQ $32, BX
	INCQ CX
	CMPQ CX, R13
	JLT product

	// Y0 and Y2 become their weights, Y1 and Y3 those of the odd rows.
	WEIGHTS(Y0, Y1, Y0, 0)
	WEIGHTS(Y2, Y3, Y2, 64)
	VPSRLQ $32, Y0, Y1
	VPSRLQ $32, Y2, Y3

	// lanes += columns times weights.
	XORQ BX, BX

add:
	VPMULDQ (R8)(BX*1), Y0, Y4
	VMOVSHDUP (R8)(BX*1), Y5
	VPMULDQ (R9)(BX*1), Y2, Y6
	VMOVSHDUP (R9)(BX*1), Y7
	VPMULDQ Y5, Y1, Y5
	VPMULDQ Y7, Y3, Y7
	VPADDQ Y5, Y4, Y4
	VPADDQ Y7, Y6, Y6
	VPADDQ (DI)(BX*1), Y4, Y4
	VPADDQ Y6, Y4, Y4
	VMOVDQU Y4, (DI)(BX*1)
	ADDQ $32, BX
	CMPQ BX, SI
	JLT add

	ADDQ $128, R10
	ADDQ $128, R11
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

// func roundColumns(dst, x0, x1 *float64, n int, unit0, unit1 float64) (square0, square1 float64)
TEXT ·roundColumns(SB), NOSPLIT, $0-64
	MOVQ dst+0(FP), DI
	MOVQ x0+8(FP), R8
	MOVQ x1+16(FP), R9
	MOVQ n+24(FP), CX
	VBROADCASTSD unit0+32(FP), Y10
	VBROADCASTSD unit1+40(FP), Y11
	VBROADCASTSD magic<>(SB), Y13
	VXORPD Y0, Y0, Y0
	VXORPD Y1, Y1, Y1
	XORQ BX, BX

columns:
	VMULPD (R8)(BX*8), Y10, Y2
	VMULPD (R9)(BX*8), Y11, Y3
	VADDPD Y13, Y2, Y2
	VADDPD Y13, Y3, Y3
	VSUBPD Y13, Y2, Y4
	VSUBPD Y13, Y3, Y5
	VMULPD Y4, Y4, Y4
	VMULPD Y5, Y5, Y5
	VADDPD Y4, Y0, Y0
	VADDPD Y5, Y1, Y1
	VPSLLQ $32, Y3, Y3
	VPBLENDD $0xAA, Y3, Y2, Y2 // of each column, both integers
	VEXTRACTI128 $1, Y2, X3
	VMOVLPS X2, (DI)
	VMOVHPS X2, 32(DI)
	VMOVLPS X3, 64(DI)
	VMOVHPS X3, 96(DI)
	ADDQ $128, DI
	ADDQ $4, BX
	CMPQ BX, CX
	JLT columns

	VHADDPD Y1, Y0, Y0 // the sums of both rows, in halves
	VEXTRACTF128 $1, Y0, X1
	VADDPD X1, X0, X0
	VMOVLPS X0, square0+48(FP)
	VMOVHPS X0, square1+56(FP)
	VZEROUPPER
	RET
